# SPDX-License-Identifier: Apache-2.0
"""Checks of a server container, and of the binary started with the container's arguments."""

import socket
import subprocess
import tempfile

import yaml

from chart import EXAMPLES, Workload, of_kind
from report import differs, report
from server import Server, serve_flags

# the server may take this long beyond --drain-timeout: 5 s for a running step, 2 s on each port for
# last replies
AFTER_DRAIN_S = 9
KEEPING_S = 10  # and this long to write pages to disk
POD_IP = "10.1.2.3"


def check_pod(workload: Workload) -> None:
    context = workload.pod_security | workload.container["securityContext"]
    wanted = {
        "runAsNonRoot": True, "runAsUser": 10001, "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"}
    }
    report(f"{workload.name}: restricted security context",
           differs({key: context.get(key)
                    for key in wanted}, wanted))
    drain, pre_stop = int(workload.flag("--drain-timeout")), workload.pre_stop_s()
    cache = workload.flag("--kv-cache-dir")
    more = AFTER_DRAIN_S + (KEEPING_S if cache else 0)
    enough = workload.grace_s >= pre_stop + drain + more
    report(
        f"{workload.name}: grace {workload.grace_s} s covers preStop {pre_stop} s and drain "
        f"{drain} s",
        [] if enough else [f"less than {more} s more"])
    if cache:
        check_cache_volume(workload, cache)
    ports = {"http": int(workload.flag("--port")), "grpc": int(workload.flag("--grpc-port"))}
    for port, flag in (("kv-events", "--kv-events-endpoint"), ("kv-replay",
                                                               "--kv-events-replay-endpoint")):
        if workload.flag(flag):
            ports[port] = int(workload.flag(flag).rpartition(":")[2])
    report(f"{workload.name}: container ports are those of the flags",
           differs(workload.ports, ports))
    unknown = sorted(set(workload.flags()) - serve_flags())
    report(f"{workload.name}: {len(workload.flags())} flags known to the binary",
           [f"unknown {flag}" for flag in unknown])
    model = workload.args[1]
    problems = differs(workload.args[0],
                       "serve") + [a for a in workload.expanded_args(POD_IP) if "$(" in a]
    if workload.volumes.keys() & {"model"}:
        problems += [] if workload.mount(model) else [f"{model} is not mounted"]
    report(f"{workload.name}: command and model path", problems)


def check_cache_volume(workload: Workload, path: str) -> None:
    """Checks that the server's user may write to the volume, and that the volume is large enough
    for the server's own limit."""
    mount = workload.mount(path)
    volume = workload.volumes[mount["name"]]
    problems = differs((mount["mountPath"], mount.get("readOnly", False)), (path, False))
    problems += differs(workload.pod_security["fsGroup"], workload.pod_security["runAsGroup"])
    limit_gib = int(workload.flag("--kv-cache-disk").removesuffix("GiB"))
    if "emptyDir" in volume:
        size_gib = int(volume["emptyDir"]["sizeLimit"].removesuffix("Gi"))
        problems += [] if size_gib > limit_gib else [f"a volume of {size_gib} GiB"]
    else:
        problems += [] if volume.get("persistentVolumeClaim", {}).get("claimName") else [volume]
    report(f"{workload.name}: a volume that the server may fill with {limit_gib} GiB of pages",
           problems)


def scrape_key(manifests: list[dict], keys: list[str]) -> str | None:
    """The key with which the ServiceMonitor scrapes; with another Secret, any of `keys`."""
    endpoint = of_kind(manifests, "ServiceMonitor")["spec"]["endpoints"][0]
    if "authorization" not in endpoint:
        return None
    secrets = [manifest for manifest in manifests if manifest["kind"] == "Secret"]
    return secrets[0]["stringData"][endpoint["authorization"]["credentials"]
                                    ["key"]] if secrets else keys[-1]


def key_text(workload: Workload, manifests: list[dict]) -> str:
    """The contents of the key file: the entry that the volume takes from the chart's Secret, or
    substitutes for another Secret."""
    path = workload.flag("--api-key-file")
    if path is None:
        return ""
    mount = workload.mount(path)
    item = workload.volumes[mount["name"]]["secret"]["items"][0]
    if f"{mount['mountPath']}/{item['path']}" != path:
        raise LookupError(f"{path} is not in the volume")
    secrets = [manifest for manifest in manifests if manifest["kind"] == "Secret"]
    return secrets[0]["stringData"][item["key"]] if secrets else "one-key\nother-key\n"


def check_server(workload: Workload, manifests: list[dict]) -> None:
    """Starts the binary as the container would, and sends the requests of probes, Prometheus,
    the autoscaler and routers."""
    text = key_text(workload, manifests)
    with tempfile.NamedTemporaryFile("w") as key_file, tempfile.TemporaryDirectory() as cache:
        key_file.write(text)
        key_file.flush()
        try:
            with Server(workload, key_file.name, cache) as server:
                ask_server(server, workload, manifests, text.split())
            problems = differs((server.host.strip("[]"), server.model),
                               (workload.flag("--host"), workload.flag("--served-model-name")))
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            problems = [error]
    report(f"{workload.name}: starts with the rendered arguments and ends by SIGTERM", problems)


def ask_server(server: Server, workload: Workload, manifests: list[dict], keys: list[str]) -> None:
    statuses = {name: server.get(probe["path"])[0] for name, probe in workload.probes().items()}
    ports = {workload.port_number(probe["port"]) for probe in workload.probes().values()}
    report(
        f"{workload.name}: probes answer without a key on the HTTP port",
        differs(statuses, dict.fromkeys(statuses, 200)) + differs(ports, {workload.ports["http"]}))
    report(f"{workload.name}: the gRPC port speaks HTTP/2 in clear text",
           differs(server.speaks_http2(), True))
    if workload.flag("--kv-events-endpoint"):
        for port in server.event_ports:
            socket.create_connection(("localhost", port), timeout=30).close()
        report(f"{workload.name}: both event ports are listened on",
               differs(len(server.event_ports), 2))
    if keys:
        report(
            f"{workload.name}: keys are asked for",
            differs([server.get("/v1/models", key)[0] for key in (None, "wrong", *keys)],
                    [401, 401] + [200] * len(keys)))
    kinds = [manifest["kind"] for manifest in manifests]
    if "ServiceMonitor" in kinds:
        key, path = scrape_key(manifests,
                               keys), of_kind(manifests,
                                              "ServiceMonitor")["spec"]["endpoints"][0]["path"]
        status, body = server.get(path, key)
        report(f"{workload.name}: Prometheus may scrape {path}",
               differs((status, "# TYPE" in body), (200, True)))
    if "HorizontalPodAutoscaler" in kinds:
        check_autoscaler(of_kind(manifests, "HorizontalPodAutoscaler"), server.metric_names())


def check_autoscaler(autoscaler: dict, metric_names: set[str]) -> None:
    rules = yaml.safe_load((EXAMPLES / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    offered = {rule["name"]["as"]: rule["seriesQuery"].partition("{")[0] for rule in rules}
    asked = [metric["pods"]["metric"]["name"] for metric in autoscaler["spec"]["metrics"]]
    problems = [f"no adapter rule for {name}" for name in asked if name not in offered]
    problems += [
        f"{offered[name]} is not in /metrics" for name in asked
        if name in offered and offered[name] not in metric_names
    ]
    report(f"autoscaling: {asked[0]} is offered by the adapter's rule from a series of /metrics",
           problems)
