"""What the benches in Python share: the binaries, ports of this machine, and quantiles."""
import os, pathlib, random, socket, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
BINARY = pathlib.Path(os.environ.get("THRONG_BIN") or TARGET / "release/throng").absolute()
WAIT_SECONDS = 30


def free_port():
    """A port that nothing listens at, and that no outgoing connection gets before a server listens there."""
    first_outgoing = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(first_outgoing // 2, first_outgoing) if first_outgoing > 4_096 else 0
        with socket.socket() as it:
            try:
                it.bind(("127.0.0.1", port))
                return it.getsockname()[1]
            except OSError:
                continue


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
