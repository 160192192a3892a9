#!/usr/bin/env python3
"""Publishes a message: python3 publish.py TOPIC TEXT"""

import json
import os
import sys
from urllib.request import Request, urlopen

API = os.environ.get("THRONG_API", "http://127.0.0.1:8001")
KEY = os.environ.get("THRONG_API_KEY", "")


def publish(topic, data):
    body = json.dumps({"topic": topic, "data": data}).encode()
    request = Request(f"{API}/api/publish", body, {"Authorization": f"Bearer {KEY}"})
    with urlopen(request, timeout=10) as response:
        return json.load(response)["id"]


print(publish(sys.argv[1], sys.argv[2]))
