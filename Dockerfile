# docker build --build-arg SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) --build-arg REVISION=$(git rev-parse HEAD) -t llm-slo-prober:0.5.0 .
# For a release give BASE with its digest: --build-arg BASE=python:3.11.14-slim-bookworm@sha256:…
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS build
# Of every file and of the SBOM, so that the same commit on the same base can give the same layer.
ARG SOURCE_DATE_EPOCH=0
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY . .
# Wheels only: nothing is compiled, so there is no compiler here either. Everything that comes from outside has its hash in a lock.
RUN python -m venv --without-pip /opt/prober \
    && python -m venv /opt/build \
    && /opt/build/bin/python -m pip install --quiet --require-hashes --only-binary=:all: --requirement=requirements.build.lock \
    && /opt/build/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir=/opt/wheel . \
    && python -m pip --python=/opt/prober/bin/python install --quiet --no-compile \
        --require-hashes --only-binary=:all: --requirement=requirements.image.lock \
    && python -m pip --python=/opt/prober/bin/python install --quiet --no-compile --no-deps --no-index /opt/wheel/*.whl \
    && /opt/prober/bin/python deploy/image/sbom.py > /opt/prober/sbom.cdx.json \
    && /opt/prober/bin/python -m compileall -q --invalidation-mode=unchecked-hash /opt/prober/lib \
    && find /opt/prober -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +

FROM ${BASE}
ARG VERSION=0.5.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="llm-slo-prober" \
      org.opencontainers.image.description="Prometheus-native continuous SLO prober for LLM serving" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/prober /opt/prober
ENV PATH=/opt/prober/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /
EXPOSE 9742
# It drains and exits with 0; as process 1 too, since it handles the signal itself.
STOPSIGNAL SIGTERM
# For Docker and Compose; Kubernetes has probes of its own. Change it with --web.listen-address or --web.route-prefix.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=6 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 9742, timeout=4); c.request('GET', '/-/healthy'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["python", "-m", "prober"]
CMD ["run", "--config.file=/etc/prober/prober.yaml"]
