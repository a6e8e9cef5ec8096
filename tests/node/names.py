"""DNS of the own node, in place of CoreDNS and kube-proxy: `python -m tests.node.names ADDRESS FILE`.

FILE is JSON, from names of Services, such as `prober.llm.svc`, to the address of a pod. Names are also asked with the cluster's domain.
The file is read for each question.
"""

import json
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


def answer(question: bytes, addresses: Mapping[str, str]) -> bytes:
    """The answer in wire format: NXDOMAIN for other names, and nothing for other types."""
    query = dns.message.from_wire(question)
    reply = dns.message.make_response(query, recursion_available=True)
    (asked,) = query.question
    name = asked.name.to_text().lower().rstrip(".").removesuffix(".cluster.local")
    if name not in addresses:
        reply.set_rcode(dns.rcode.NXDOMAIN)
    elif asked.rdtype == dns.rdatatype.A:
        reply.answer.append(dns.rrset.from_text(asked.name, 1, "IN", "A", addresses[name]))
    return reply.to_wire()


def main(address: str, file: str) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        while True:
            question, client = server.recvfrom(4096)
            server.sendto(answer(question, json.loads(Path(file).read_text())), client)


if __name__ == "__main__":
    main(*sys.argv[1:])
