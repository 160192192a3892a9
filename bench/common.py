"""What the benches in Python share: the binaries, ports of this machine, and quantiles."""
import os, pathlib, socket, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
BINARY = pathlib.Path(os.environ.get("THRONG_BIN") or TARGET / "release/throng").absolute()
WAIT_SECONDS = 30


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


def until(what, is_so):
    """Waits until something is so; TimeoutError if it is not within WAIT_SECONDS."""
    end = time.monotonic() + WAIT_SECONDS
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {WAIT_SECONDS} s")
        time.sleep(0.02)


def can_connect(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def wait_port(port):
    until(f"somebody who listens at port {port}", lambda: can_connect(port))


def quantile(values, of):
    """The value below which this share of the values is."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * of), len(ordered) - 1)]
