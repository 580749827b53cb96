"""fairseq's commands and the recipes' scripts without their start: a server that has imported fairseq forks for each.

Starting them takes longer than what tests have them do. The tests that run whole recipes use this; those of the
quickstart and of the installation start real processes, as users do. Linux only: elsewhere, a fork of a process with
torch in it is not safe.
"""

import atexit
import contextlib
import importlib
import json
import logging
import os
import runpy
import select
import signal
import socket
import stat
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Iterator, List

LOADED = ("fairseq", "fairseq.trainer", "fairseq.sequence_generator", "sacrebleu", "sentencepiece")
COMMANDS = (
    "preprocess",
    "train",
    "validate",
    "generate",
)  # not among LOADED: these set up logging as they are imported
CLIENT = """\
#!/bin/sh
exec "{python}" -SE "{this}" {socket} {name} "$@"
"""
PYTHON = """\
#!/bin/sh
case $1 in
  */user_dir_examples/*.py) exec "{python}" -SE "{this}" {socket} "$@" ;;
  *) exec "{python}" "$@" ;;
esac
"""


@contextlib.contextmanager
def environment(folder: Path) -> Iterator[Path]:
    """What looks like a virtual environment, in `folder` (a short path: it holds a socket), while the server runs."""
    names = {"python": sys.executable, "this": __file__, "socket": folder / "socket"}
    (folder / "bin").mkdir()
    for name in ("python", *(f"fairseq-{command}" for command in COMMANDS)):
        tool = folder / "bin" / name
        tool.write_text((PYTHON if name == "python" else CLIENT).format(name=name, **names))
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    command = [sys.executable, __file__, str(folder / "socket")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        lines = iter(server.stdout.readline, "")
        assert "ready\n" in lines, "the server ended before it was ready"
        yield folder
        server.stdin.close()


# --- client ---------------------------------------------------------------------------------------------------------


def ask(address: str, argv: List[str]) -> int:
    """Runs a command line in a fork of the server, with the files and the environment of this process."""
    request = json.dumps({"argv": argv, "cwd": os.getcwd(), "environment": dict(os.environ)}).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [len(request).to_bytes(8, "big")], [0, 1, 2])
        connection.sendall(request)
        status = connection.recv(1)
    return status[0] if status else 1


# --- server ---------------------------------------------------------------------------------------------------------


def serve(address: str) -> None:
    """Until its standard input ends."""
    for name in LOADED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks: they answer on their connection
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
            connection = server.accept()[0]
            if os.fork() == 0:
                server.close()
                answer(connection)
            connection.close()


def answer(connection: socket.socket) -> None:
    """Becomes the process that was asked for; does not return."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        size, files, _, _ = socket.recv_fds(connection, 8, 3)
        with connection.makefile("rb") as stream:
            request = json.loads(stream.read(int.from_bytes(size, "big")))
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, buffering=1, encoding="utf-8") for number, mode in enumerate("rww")
        )
        logging.getLogger().handlers.clear()  # set up anew by the commands, on their output
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        status = run(request["argv"])
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            connection.send(bytes([status & 255]))
        finally:
            os._exit(status & 255)  # whatever happens, this is no second server


def run(argv: List[str]) -> int:
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).parent)
    try:
        if argv[0].endswith(".py"):
            runpy.run_path(argv[0], run_name="__main__")
        else:
            importlib.import_module(argv[0].replace("fairseq-", "fairseq_cli.")).cli_main()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    return 0


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
    serve(sys.argv[1])
