"""The whole town on one machine: ``python -m examples.rides`` until Ctrl-C.

Three processes, as in production: the provider, the API, the worker. Kill any of them.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

COMMANDS = {
    "provider": ["examples.rides.provider"],
    "api": ["uvicorn", "examples.rides.app:app", "--no-access-log"],
    "worker": [
        *("semel", "worker", "examples.rides.app:guard"),
        *("--app", "examples.rides.app:app", "--poll", "1"),
    ],
}

ORDER = """
A ride, as often as you like with the same key:

  curl -i localhost:8000/rides -H 'idempotency-key: 7c9e6679-7425-40de-944b-e07fc1f90ae7' \\
    -H 'authorization: Bearer token-of-ada' -H 'content-type: application/json' \\
    -d '{"pickup": "Station", "destination": "Home", "card": "visa"}'

The provider's log is provider.jsonl. To make it misbehave, and to make it stop:

  curl -X PUT localhost:8100/switches -d '{"drop": true}'
  curl -X PUT localhost:8100/switches -d '{}'
"""


def main() -> None:
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        running.update((name, _start(name)) for name in COMMANDS)
        print("\n".join(f"{name}: process {each.pid}" for name, each in running.items()), ORDER)
        while True:
            for name, process in running.items():
                if process.poll() is not None:
                    running[name] = _start(name)
                    print(f"{name} is gone ({process.returncode}), process {running[name].pid} now")
            time.sleep(0.5)
    except KeyboardInterrupt:
        for process in running.values():
            process.send_signal(signal.SIGINT)
        for process in running.values():
            process.wait()


def _start(name: str) -> subprocess.Popen[bytes]:
    # In a session of its own, or Ctrl-C would reach it twice.
    return subprocess.Popen([sys.executable, "-m", *COMMANDS[name]], start_new_session=True)


if __name__ == "__main__":
    main()
