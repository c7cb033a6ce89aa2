# SPDX-License-Identifier: Apache-2.0
"""The rule about server/: which of its folders may include which.

No rule limits the files of a folder. A limit of 20 held for server/ and for no other floor (then
engine had 69 and models 59), and folders were cut to keep it, not by sense: one of them held a
command and a part of what each command plans, and three included each other. What a limit is for,
that a reader can enter rooms one by one, the rule in circles.py checks on every floor.
"""

# What a folder and those in it see of the server's other folders.
SEES = {
    "server/json/": (),
    "server/http/": (),
    "server/hub/": ("server/json/", "server/serving/build_version.h"),
    "server/ui/": ("server/http/",),
    "server/serving/": ("server/json/",),
    "server/observe/": ("server/serving/", "server/http/"),
    # A front door knows no API: those of a model's server and of its parent have the same.
    "server/api/door/": ("server/json/", "server/http/", "server/serving/", "server/api/head/",
                         "server/api/reply/"),
    "server/api/": ("server/json/", "server/http/", "server/ui/", "server/serving/",
                    "server/observe/"),
    # A parent has no engine, so it has none of the routes with an ApiContext.
    "server/router/": ("server/json/", "server/http/", "server/ui/", "server/serving/",
                       "server/api/door/", "server/api/head/", "server/api/reply/",
                       "server/api/grpc/"),
    "server/app/": ("server/",),
}
# No API includes another, and only REGISTRIES include one: without its folder and its line there,
# an API is gone. The header that they include makes a folder an API.
REGISTRIES = {"server/api/apis.cc": "routes.h", "server/api/grpc/server.cc": "service.h"}


def folder_of(path, folders):
    return next((folder for folder in folders if path.startswith(folder)), None)


def server_layers(tree):
    apis = [name.removesuffix(registered) for path, _, name, _ in tree.product_includes()
            for registered in [REGISTRIES.get(path, "-")] if name.endswith("/" + registered)]
    for path, line, name, _ in tree.look(tree.product_includes()):
        mine, api = folder_of(path, SEES), folder_of(name, apis)
        if api is not None and not path.startswith(api) and path not in REGISTRIES:
            yield path, line, f"{path} includes {name}, an API's; only {list(REGISTRIES)} may"
        elif mine is None or not name.startswith("server/") or name.startswith(mine):
            continue
        elif not name.startswith(SEES[mine] or ("-",)):
            yield path, line, f"{mine} includes {name}; it sees {SEES[mine] or 'itself'}"


RULES = [server_layers]
