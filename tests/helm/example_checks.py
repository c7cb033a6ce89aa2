# SPDX-License-Identifier: Apache-2.0
"""The examples of deploy/kubernetes: valid by their CRDs, and consistent with the chart and the
binary."""

import re

import yaml

import schemas
from chart import EXAMPLES, VALUES, Workload, of_kind, render
from pod_checks import check_pod, check_server
from report import differs, report
from server import Server

PICKER_METRICS = {
    "vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"
}


def check_strictness(manifests: list[dict]) -> None:
    """Checks that the validators refuse invalid manifests."""
    for manifest in manifests:
        wrong = yaml.safe_load(yaml.safe_dump(manifest))
        wrong.get("spec", wrong)["unknownField"] = 1
        found = schemas.problem(wrong, schemas.kubernetes_versions()[-1])
        report(f"a wrong field in {manifest['kind']} is seen",
               [] if found and "unknownField" in found else [found])


def check_keda(scaled: dict, default: list[dict], metric_names: set[str]) -> None:
    """Checks that it scales the chart's Deployment, which then names no number of pods, by a series
    of /metrics."""
    deployment = of_kind(default, "Deployment")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    series, job = re.search(r'([a-z_]+:[a-z_]+)\{.*job="([^"]+)"', query).groups()
    unset = render(VALUES["default"], schemas.kubernetes_versions()[-1], "--set", "replicas=null")
    report("ScaledObject: scales the chart's Deployment by a series of /metrics",
           differs((scaled["spec"]["scaleTargetRef"]["name"], series in metric_names, job),
                   (deployment["metadata"]["name"], True,
                    deployment["metadata"]["labels"]["app.kubernetes.io/name"])))
    report("ScaledObject: replicas=null leaves the number of pods to it",
           differs("replicas" in of_kind(unset, "Deployment")["spec"], False))


def check_examples(default: list[dict]) -> None:
    manifests = []
    for name in ("inference-pool", "kserve", "keda"):
        manifests += yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text())
    latest = schemas.kubernetes_versions()[-1]
    for manifest in manifests:
        found = schemas.problem(manifest, latest)
        report(f"{manifest['kind']} {manifest['apiVersion']} is valid by its CRD",
               [found] if found else [])
    check_strictness(manifests)
    pool, route = of_kind(manifests, "InferencePool"), of_kind(manifests, "HTTPRoute")
    deployment = Workload.of_deployment("default", of_kind(default, "Deployment"))
    labels = of_kind(default, "Deployment")["spec"]["template"]["metadata"]["labels"]
    backend = route["spec"]["rules"][0]["backendRefs"][0]
    report(
        "InferencePool: selects the chart's pods and their HTTP port, and the route leads to it",
        differs(pool["spec"]["selector"]["matchLabels"].items() <= labels.items(), True) +
        differs([port["number"]
                 for port in pool["spec"]["targetPorts"]], [deployment.ports["http"]]) + differs(
                     (backend["group"], backend["name"]),
                     (pool["apiVersion"].partition("/")[0], pool["metadata"]["name"])))
    with Server(deployment) as server:
        check_keda(of_kind(manifests, "ScaledObject"), default, server.metric_names())
        report("InferencePool: the picker's metrics exist",
               sorted(PICKER_METRICS - server.metric_names()))
        prefix = route["spec"]["rules"][0]["matches"][0]["path"]["value"]
        report(f"HTTPRoute: {prefix} is a prefix of our API",
               differs(server.get(f"{prefix}/models")[0], 200))

    runtime, service = of_kind(manifests, "ServingRuntime"), of_kind(manifests, "InferenceService")
    workload = Workload.of_kserve(runtime, service)
    workload.args = [
        service["metadata"]["name"] if arg == "{{.Name}}" else arg for arg in workload.args
    ]
    model = service["spec"]["predictor"]["model"]
    formats = [supported["name"] for supported in runtime["spec"]["supportedModelFormats"]]
    report(
        "kserve: service, runtime and container names meet",
        differs((workload.container["name"], workload.args[1]),
                ("kserve-container", "/mnt/models")) + differs(
                    (model["runtime"], model["modelFormat"]["name"]),
                    (runtime["metadata"]["name"], formats[0])))
    check_pod(workload)
    check_server(workload, manifests)
