"""A vLLM whose private interfaces moved is refused by the name of what moved, before it can answer wrongly.

It runs in a process of its own: vLLM settles at import what it reads from the environment.
"""

import os
import subprocess
import sys

import pytest

from service.engine.base import EngineOptions
from service.engine.vllm_process import engine_environment

PREAMBLE = """
import service.engine.vllm_interfaces as interfaces
from service.errors import VersionError

def refusal(wanted):
    try:
        interfaces.check_interfaces(wanted)
    except VersionError as error:
        return str(error)
    return ""
"""


@pytest.fixture(scope="module")
def told() -> str:
    questions = [
        "refusal(interfaces.INTERFACES)",
        "refusal({'vllm.forward_context.set_forward_context': ['skip_compiled', 'skip_everything']})",
        "refusal({'vllm.pooling_params.PoolingParams': ['extra_kwargs', 'beam']})",
        "refusal({'vllm.v1.engine.llm_engine.LLMEngine.prefill': []})",
        "refusal({'vllm.v1.gone.Engine.step': []})",
    ]
    code = PREAMBLE + "".join(f"print('ANSWER', {question})\n" for question in questions)
    environment = {**os.environ, **engine_environment(EngineOptions("float32", 8, 0.25, 1, 1.0))}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_installed_vllm_is_as_expected_and_each_way_of_moving_is_named(told: str) -> None:
    answers = [line.removeprefix("ANSWER").strip() for line in told.splitlines() if line.startswith("ANSWER")]
    assert answers == [
        "",
        "vLLM's vllm.forward_context.set_forward_context has no skip_everything; install the pinned vLLM",
        "vLLM's vllm.pooling_params.PoolingParams has no beam; install the pinned vLLM",
        "vLLM has no vllm.v1.engine.llm_engine.LLMEngine.prefill; install the pinned vLLM",
        "vLLM has no vllm.v1.gone.Engine.step; install the pinned vLLM",
    ]
