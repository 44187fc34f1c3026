"""A child process: builds one host, then answers commands, one JSON line in, one JSON line out.

    {"do": "run", "contender": .., "batch": {..}}   -> {"cpu_s", "wall_s", "answers"}
    {"do": "fact", "name": .., "arguments": {..}}   -> {"value"}
    {"do": "stop"}                                  -> {"stopped"}

Answers leave through the process's original standard output; whatever a library prints goes to standard error.
"""

import gc
import importlib
import json
import os
import sys
import time
import traceback
from typing import Any, TextIO

from loadtest.engine.contender import HOSTS, Batch, Host, HostSpec
from loadtest.engine.cpu_time import tree_cpu_seconds, tree_rss_mib


def main() -> None:
    """Serve the host that the first line describes until told to stop or standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    spec = HostSpec(**json.loads(sys.stdin.readline()))
    serve(open_host(spec, answers), sys.stdin, answers)


def open_host(spec: HostSpec, answers: TextIO) -> Host:
    """Build the host and say that it is ready."""
    began, spent = time.perf_counter(), tree_cpu_seconds()
    host: Host = importlib.import_module(HOSTS[spec.kind]).open_host(spec)
    _say(answers, {"ready": True, "start_s": time.perf_counter() - began, "start_cpu_s": tree_cpu_seconds() - spent})
    return host


def serve(host: Host, commands: TextIO, answers: TextIO) -> None:
    """Answer until told to stop; an error in a command is an answer, not an end."""
    for line in commands:
        command = json.loads(line)
        if command["do"] == "stop":
            break
        try:
            _say(answers, answer(host, command))
        except Exception as error:
            traceback.print_exc()
            _say(answers, {"error": f"{type(error).__name__}: {error}".splitlines()[0]})
    host.close()
    _say(answers, {"stopped": True})


def answer(host: Host, command: dict[str, Any]) -> dict[str, Any]:
    """Do one command.

    Raises:
        KeyError: the host has no such contender or fact.
    """
    if command["do"] == "fact":
        return {"value": host.facts[command["name"]](**command["arguments"])}
    contender, batch = host.contenders[command["contender"]], Batch(**command["batch"])
    contender.prepare(batch)
    gc.collect()
    wall, cpu = time.perf_counter(), tree_cpu_seconds()
    found = contender.run(batch)
    cpu_s, wall_s = tree_cpu_seconds() - cpu, time.perf_counter() - wall
    plain = [[list(map(list, one.sids)), list(one.scores)] for one in found]
    return {"cpu_s": cpu_s, "wall_s": wall_s, "rss_mib": tree_rss_mib(), "answers": plain}


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
