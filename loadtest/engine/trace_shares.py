"""A torch profiler's trace as shares of time: linear, attention, norms, KV gather, trie, prefix memory, the rest.

Each event's own time goes to the first rule that fits its name, else to its nearest ancestor's part. Python frames name
the file they are in, so what a file does counts as that file's part, whatever operators it calls. Stacks make Python
dearer than it is without a profiler: shares of small Python-heavy parts are upper bounds.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

REST = "rest"
_FRAMES = (
    (r"gather_prompt_kv|cache_places|_prompt_kv", "KV gather"),
    (r"service/model/(\w*trie\w*|legal\w*|\w+_nodes|node_bits)\.py|catalog_versions\.py", "trie"),
    (r"service/model/prefix_memory\.py", "prefix memory"),
    (r"service/model/beam(_group)?\.py|service/engine/wire\.py", "beam selection"),
    (r"service/engine/(vllm_attention\w*|shared_prefix)\.py|v1/attention/|layers/attention", "attention"),
    (r"layernorm\.py|rotary_embedding|activation\.py", "norms, rotary, activations"),
    (r"layers/linear\.py|layers/utils\.py", "linear"),
    (r"torch_compile_cache|torchinductor|inductor_cache", "norms, rotary, activations"),
    (r"v1/core/|v1/engine/|entrypoints/|v1/outputs|v1/request|vllm_runner", "vLLM's scheduler and front end"),
    (r"service/engine/vllm_\w+\.py|model_executor/models/", REST),
)
_OPERATORS = (
    (r"aten::(linear|addmm|mm|matmul)$|mkldnn|onednn|_C::\w*(mm|gemm|linear)", "linear"),
    (r"cpu_attention|cpu_attn|unified_attention|scaled_dot_product", "attention"),
    (r"rms_norm|rotary_embedding|silu_and_mul|gelu", "norms, rotary, activations"),
)
_OWN = {"KV gather", "trie", "prefix memory", "attention"}  # what these call stays theirs, whatever the operator


def shares(trace: Mapping[str, Any]) -> dict[str, float]:
    """Fractions of the busiest thread's time by part, largest first; they sum to 1.

    Raises:
        ValueError: the trace holds no events.
    """
    spent: dict[str, float] = defaultdict(float)
    for part, own in _own_times(_main_thread(trace)):
        spent[part] += own
    total = sum(spent.values())
    if total <= 0:
        raise ValueError("the trace holds no time")
    return {part: own / total for part, own in sorted(spent.items(), key=lambda pair: -pair[1])}


def _main_thread(trace: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    threads: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in {"cpu_op", "python_function", "user_annotation"}:
            threads[event["tid"]].append(event)
    if not threads:
        raise ValueError("the trace holds no operator and no Python frame")
    return max(threads.values(), key=len)


def _own_times(events: list[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Part and own duration of each event; children are those that lie inside."""
    open_events: list[tuple[float, str, list[float]]] = []  # end, part, [own time]
    for event in sorted(events, key=lambda one: (one["ts"], -one["dur"])):
        while open_events and event["ts"] >= open_events[-1][0] - 1e-3:
            _, part, own = open_events.pop()
            yield part, max(own[0], 0.0)
        part = part_of(event["name"], event["cat"], open_events[-1][1] if open_events else REST)
        if open_events:
            open_events[-1][2][0] -= event["dur"]
        open_events.append((event["ts"] + event["dur"], part, [float(event["dur"])]))
    yield from ((part, max(own[0], 0.0)) for _, part, own in open_events)


def part_of(name: str, kind: str, parent: str) -> str:
    """The part an event belongs to, given its parent's."""
    if kind == "python_function":
        return next((part for pattern, part in _FRAMES if re.search(pattern, name)), parent)
    if parent in _OWN:
        return parent
    return next((part for pattern, part in _OPERATORS if re.search(pattern, name)), parent)
