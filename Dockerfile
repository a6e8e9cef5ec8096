# tools/image.sh llm-slo-prober:0.6.0 builds it with what is there: Docker, Podman or buildah.
# For a release give the base with its digest: --base python:3.11.14-slim-bookworm@sha256:…
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS build
# Of every file and of the SBOM, so that the same commit on the same base gives the same layers.
ARG SOURCE_DATE_EPOCH=0
# A file of certificates for pip, where a proxy has its own; it is mounted while building and gets into no image.
ARG PIP_CERT
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY . .
# Wheels only: of what comes from outside nothing is compiled, and everything has its hash in a lock. The prober's own serving.c is
# compiled by the wheel of Zig; a wheel without it has another name, and ends the build.
RUN python -m venv --without-pip /opt/prober \
    && python -m venv /opt/build \
    && /opt/build/bin/python -m pip install --quiet --require-hashes --only-binary=:all: --requirement=requirements.build.lock \
    && /opt/build/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir=/opt/wheel . \
    && python -m pip --python=/opt/prober/bin/python install --quiet --no-compile \
        --require-hashes --only-binary=:all: --requirement=requirements.image.lock \
    && python -m pip --python=/opt/prober/bin/python install --quiet --no-compile --no-deps --no-index /opt/wheel/*-linux_*.whl \
    && rm /opt/prober/bin/[Aa]ctivate* \
    && python tools/rootfs.py /rootfs \
    && /opt/prober/bin/python tools/sbom.py /rootfs/var/lib/dpkg/status > /opt/prober/sbom.cdx.json \
    && /opt/prober/bin/python -m compileall -q -f --invalidation-mode=unchecked-hash /opt/prober/lib \
    && find /opt/prober -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +

# Of the base only what Python needs: no shell, no package manager, no pip.
FROM scratch
ARG BASE
ARG VERSION=0.6.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="llm-slo-prober" \
      org.opencontainers.image.description="Prometheus-native continuous SLO prober for LLM serving" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE}"
COPY --from=build /rootfs /
COPY --from=build /opt/prober /opt/prober
ENV PATH=/opt/prober/bin:/usr/local/bin:/usr/bin LANG=C.UTF-8 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /
EXPOSE 9742
# It drains and exits with 0, as process 1 too.
STOPSIGNAL SIGTERM
# For Docker and Compose; Kubernetes has probes of its own. Change it with --web.listen-address or --web.route-prefix.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=6 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 9742, timeout=4); c.request('GET', '/-/healthy'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["python", "-m", "prober"]
CMD ["run", "--config.file=/etc/prober/prober.yaml"]
