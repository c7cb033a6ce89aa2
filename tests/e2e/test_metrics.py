# SPDX-License-Identifier: Apache-2.0
"""/metrics: the names that dashboards and routers read, and that the figures follow the work."""

import math
import re
import shutil
import subprocess
import unittest

from server_process import ServerProcess

REQUIRED = """
diffserve_requests_running diffserve_requests_waiting diffserve_waiting_tokens
diffserve_kv_pages diffserve_layer_lambda diffserve_layer_lambda_init
diffserve_prompt_tokens_total diffserve_generation_tokens_total
diffserve_requests_finished_total diffserve_requests_refused_total
diffserve_preemptions_total diffserve_prefix_query_tokens_total
diffserve_prefix_hit_tokens_total diffserve_prefix_misses_total
diffserve_time_to_first_token_seconds diffserve_inter_token_seconds
diffserve_queue_seconds diffserve_step_phase_seconds diffserve_step_rows
diffserve_build_info vllm:num_requests_running vllm:num_requests_waiting
vllm:kv_cache_usage_perc vllm:prompt_tokens_total vllm:generation_tokens_total
vllm:request_success_total vllm:num_preemptions_total vllm:prefix_cache_queries_total
vllm:prefix_cache_hits_total vllm:time_to_first_token_seconds
vllm:inter_token_latency_seconds vllm:e2e_request_latency_seconds
vllm:request_queue_time_seconds vllm:request_prompt_tokens
vllm:request_generation_tokens vllm:cache_config_info vllm:lora_requests_info
vllm:request_inference_time_seconds vllm:request_time_per_output_token_seconds
vllm:request_max_num_generation_tokens vllm:request_params_n
vllm:request_params_max_tokens""".split()


def setUpModule():
    global server
    server = unittest.enterModuleContext(ServerProcess())


class MetricsTest(unittest.TestCase):
    def text(self) -> str:
        response = server.get("/metrics")
        self.assertEqual(response.status, 200)
        self.assertTrue(response.headers["content-type"].startswith("text/plain"))
        return response.body.decode()

    def test_promtool_has_no_complaint(self):
        if not shutil.which("promtool"):
            self.skipTest("promtool (Debian package prometheus) is not installed")
        server.post("/v1/completions", {"prompt": "x", "max_tokens": 3})
        checked = subprocess.run(["promtool", "check", "metrics"], input=self.text(),
                                 capture_output=True, text=True, timeout=30)
        # promtool's lint dislikes colons in names; vLLM's names have one and are the point of
        # having them.
        complaints = [
            line for line in (checked.stdout + checked.stderr).splitlines()
            if not line.startswith("vllm:")
        ]
        self.assertEqual(complaints, [])

    def test_promised_names_are_there_with_help_and_type(self):
        text = self.text()
        names = set(re.findall(r"^# TYPE (\S+) ", text, re.M)) & set(
            re.findall(r"^# HELP (\S+) \S", text, re.M))
        self.assertEqual([name for name in REQUIRED if name not in names], [])

    def test_histograms_start_at_a_tenth_of_a_millisecond(self):
        for name in ("diffserve_time_to_first_token_seconds", "diffserve_inter_token_seconds",
                     "diffserve_step_phase_seconds"):
            bounds = {
                float(bound)
                for bound in re.findall(rf'^{name}_bucket{{[^}}]*le="([^"+]+)"', self.text(), re.M)
            }
            self.assertEqual(min(bounds), 0.0001)

    # Two tokens of one step have no time between them: nothing may be guessed.
    def test_counters_move_by_exactly_the_work(self):
        server = self.enterContext(ServerProcess("--speculative", "off"))
        before = server.metrics()
        prompt = "counted " * 8  # 64 tokens and BOS
        for _ in range(2):
            usage = server.post(
                "/v1/completions",
                {"prompt": prompt, "max_tokens": 10, "ignore_eos": True}).json()["usage"]
        server.post("/v1/completions", {"prompt": "abc", "max_tokens": 5, "logit_bias": {"1": 100}})
        after = server.metrics()

        def moved(name, **labels):
            pick = [sample for sample in after if sample.partition("{")[0] == name and
                    all(f'{k}="{v}"' in sample for k, v in labels.items())]
            self.assertTrue(pick, name)
            return sum(after[sample] - before.get(sample, 0) for sample in pick)
        self.assertEqual(usage["prompt_tokens"], 65)
        self.assertEqual(moved("diffserve_prompt_tokens_total"), 65 + 65 + 4)
        self.assertEqual(moved("vllm:prompt_tokens_total"), 65 + 65 + 4)
        self.assertEqual(moved("diffserve_generation_tokens_total"), 21)
        self.assertEqual(moved("diffserve_requests_finished_total", reason="length"), 2)
        self.assertEqual(moved("diffserve_requests_finished_total", reason="stop"), 1)
        self.assertEqual(moved("diffserve_prefix_hit_tokens_total"), 64)
        self.assertEqual(moved("diffserve_time_to_first_token_seconds_count"), 3)
        self.assertEqual(moved("diffserve_inter_token_seconds_count"), 9 + 9)
        self.assertEqual(moved("vllm:request_success_total"), 3)

    def test_shapes_of_requests_are_counted_as_vllm_counts_them(self):
        server = self.enterContext(ServerProcess())
        body = {"prompt": "x", "ignore_eos": True}
        server.post("/v1/completions", {**body, "max_tokens": 4, "n": 3})
        server.post("/v1/completions", {**body, "max_tokens": 7, "prompt": ["x", "y"]})
        server.post("/v1/completions", {**body, "max_tokens": 5, "stop": ["never"]})
        expected = {  # count and sum
            "params_n": (4, 3 + 1 + 1 + 1), "params_max_tokens": (6, 3 * 4 + 2 * 7 + 5),
            "max_num_generation_tokens": (4, 4 + 7 + 7 + 5),
            "generation_tokens": (6, 3 * 4 + 2 * 7 + 5)
        }
        for name, figures in expected.items():
            found = tuple(server.metric(f"vllm:request_{name}_{part}") for part in ("count", "sum"))
            self.assertEqual(found, figures, name)
        for name in ("inference_time_seconds", "time_per_output_token_seconds"):
            self.assertEqual(server.metric(f"vllm:request_{name}_count"), 6)
        inference, prefill, decode = (server.metric(f"vllm:request_{name}_time_seconds_sum")
                                      for name in ("inference", "prefill", "decode"))
        self.assertAlmostEqual(inference, prefill + decode, 6)

    def test_pages_are_free_cached_or_used(self):
        server.post("/v1/completions", {"prompt": "pages " * 20, "max_tokens": 4})
        by_state = {
            state: server.metric("diffserve_kv_pages", state=state)
            for state in ("free", "cached", "used")
        }
        self.assertEqual(by_state["used"], 0)
        self.assertGreater(by_state["cached"], 0)
        self.assertEqual(sum(by_state.values()), server.metric("diffserve_kv_pages"))
        self.assertEqual(server.metric("vllm:kv_cache_usage_perc"), 0)

    def test_each_layer_reports_its_lambda(self):
        for layer in (0, 1):
            self.assertTrue(-2 < server.metric("diffserve_layer_lambda", layer=layer) < 2)
        self.assertAlmostEqual(server.metric("diffserve_layer_lambda_init", layer=1),
                               0.8 - 0.6 * math.exp(-0.3), 6)

    def test_refusals_are_counted_by_reason(self):
        before = server.metric("diffserve_requests_refused_total", reason="too_long")
        self.assertEqual(
            server.post("/v1/completions", {"prompt": "xx", "max_tokens": 8191}).status, 400)
        self.assertEqual(server.metric("diffserve_requests_refused_total", reason="too_long"),
                         before + 1)

    def test_http_requests_are_counted_by_route_and_status(self):
        routes = {("/v1/models", 200): 2, ("/v1/completions", 200): 3, ("/v1/completions", 400): 1,
                  ("/v1/completions", 405): 1, ("other", 404): 4, ("/livez", 200): 1}
        name = "diffserve_http_requests_total"

        def counted():
            samples = server.metrics()
            return {
                key: samples.get(f'{name}{{route="{key[0]}",code="{key[1]}"}}', 0)
                for key in routes
            }
        before = counted()
        for _ in range(2):
            server.get("/v1/models")
            server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
        server.post("/v1/completions", {"prompt": "x", "max_tokens": 2, "stream": True})
        server.post("/v1/completions", {"prompt": 5.5})
        server.get("/v1/completions")
        for path in ("/index.html", "/v1", "/v1/audio/speech", "/%2e%2e/metrics"):
            server.get(path)
        server.get("/livez")
        self.assertEqual({key: count - before[key] for key, count in counted().items()}, routes)
