"""Scrapes a gshare exporter and reads the page with the parser of prometheus_client, which is independent of gshare.

usage: scrape.py ADDRESS        host:port, or the path of a Unix socket

Prints one JSON object: the families with their type and samples. Fails if the parser does, or if a family
appears twice.
"""

import http.client
import json
import socket
import sys

from prometheus_client.parser import text_string_to_metric_families


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(10)
        self.sock.connect(self.path)


def main():
    address = sys.argv[1]
    connection = UnixConnection(address) if address.startswith("/") else http.client.HTTPConnection(address, timeout=10)
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    assert answer.status == 200, answer.status
    assert answer.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    text = answer.read().decode()
    families = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            assert sample.timestamp is None
        name = family.name + ("_total" if family.type == "counter" else "")
        assert name not in families, name
        samples = [{"name": s.name, "labels": s.labels, "value": s.value} for s in family.samples]
        seen = {json.dumps([s["name"], s["labels"]], sort_keys=True) for s in samples}
        assert len(seen) == len(samples), name
        families[name] = {"type": family.type, "samples": samples}
    json.dump(families, sys.stdout)


main()
