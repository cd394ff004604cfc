"""The fork server of ``ddprun --preload``: a worker's interpreter that stops before its program.

The agent starts it with the command of its workers. sitecustomize.py, which runs before the
program, calls serve(): it imports modules and then forks a worker for each request of the agent.
In the worker serve() returns, the interpreter goes on as ever, and the program finds everything as
in a process of its own, but for the modules that are imported already. The server itself never
comes to the program, and ends by os._exit().
"""

from __future__ import annotations

import importlib


def serve(descriptor: int, wanted: str, of_ranks: str, path_of_list: str) -> None:
    """Be the fork server at this end of the agent's channel. Return in workers only."""
    server = importlib.import_module(__name__ + "._server")
    server.serve(descriptor, wanted, of_ranks, path_of_list)


def take_notes(path: str, is_whole: bool) -> None:
    """Note in a worker, at this path, what it imports; if all is known, only at its end."""
    importlib.import_module(__name__ + "._notes").take_notes(path, is_whole)
