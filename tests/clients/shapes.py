# SPDX-License-Identifier: Apache-2.0
"""Request shapes that real clients send and that this or another server has refused.

Each row of shape_table.py has a name, source, path, body, and the expected result. `None`: the
request succeeds. A word: it is refused with 400, and the message or `param` has that word.
"""

import json
import urllib.error
import urllib.request

from checks import SCRIPTED, check, run, same, true
from shape_table import SHAPES


def post(path, body):
    request = urllib.request.Request(SCRIPTED + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=50) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def add(name, seen, path, body, refused):
    def one():
        status, text = post(path, {"model": "scripted", **body})
        if refused is None:
            true(status == 200, f"{status} {text} (seen: {seen})")
        else:
            same(status, 400, f"status of {text}")
            error = json.loads(text)["error"]
            named = refused in f"{error['message']} {error.get('param')}"
            true(named, f"{refused} is not in {text}")

    one.__name__ = name
    check(one)


for shape in SHAPES:
    add(*shape)
run()
