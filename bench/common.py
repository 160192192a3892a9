"""What the benches in Python share: the binaries, ports of this machine, the servers beside Throng, and quantiles."""
import http.client, json, os, pathlib, pwd, random, shutil, socket, subprocess, sys, time

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


def start_nats():
    """Starts a server of NATS, and returns the process and its URL."""
    built = TARGET / "tools/go/nats-server"
    found = os.environ.get("NATS") or (str(built) if built.exists() else shutil.which("nats-server"))
    port = free_port()
    command = [found or sys.exit("no nats-server: scripts/install builds one"), "-a", "127.0.0.1", "-p", str(port)]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_port(port)
    return child, f"nats://127.0.0.1:{port}"


def postgres_programs():
    """Returns the folder of PostgreSQL's programs."""
    if "PG_BIN" in os.environ:
        return pathlib.Path(os.environ["PG_BIN"])
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    path = found[-1] if found else shutil.which("initdb")
    return pathlib.Path(path).parent if path else sys.exit("no PostgreSQL: apt-get install postgresql")


def start_postgres(folder):
    """Starts a server of PostgreSQL with a socket in this folder, and returns the process and its URL. SIGINT ends it."""
    programs, data, user = postgres_programs(), folder / "data", {}
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root.
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    more = {"cwd": folder, "stdout": subprocess.DEVNULL, **user}
    subprocess.run([programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale"], check=True, **more)
    child = subprocess.Popen([programs / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses="],
                             stderr=subprocess.DEVNULL, **more)
    query = [programs / "psql", "-X", "-q", "-h", folder, "-U", "postgres", "-c", "SELECT 1"]
    until("PostgreSQL", lambda: subprocess.run(query, capture_output=True).returncode == 0)
    return child, f"postgres:///postgres?host={folder}&user=postgres"


class Node:
    """A server of Throng. With `nats`, the URL of a server, it is part of a cluster."""

    def __init__(self, folder, nats=None, options=(), shards=1):
        self.client, self.admin = free_port(), free_port()
        command = [BINARY, "serve", "--shards", str(shards), "--listen", f"127.0.0.1:{self.client}", "--admin",
                   f"127.0.0.1:{self.admin}",
                   "--log", "warn", *(["--cluster", nats] if nats else []), *options]
        self.child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        wait_port(self.admin)

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=WAIT_SECONDS)
        connection.request("GET", path)
        return json.load(connection.getresponse())

    def until_joined(self, others=1):
        """Waits until this node knows so many other nodes."""
        def is_joined():
            return sum(node.get("state") == "up" for node in self.get("/api/cluster")["nodes"]) >= others

        until("the other nodes", is_joined)


def flood(node_addresses, admins, arguments, **options):
    """Starts `throng flood` with its results as JSON in a pipe."""
    scenario, *more = arguments
    command = [BINARY, "flood", scenario, ",".join(f"http://{it}" for it in node_addresses), "--json",
               "--admin", ",".join(f"http://{it}" for it in admins), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def flood_result(output):
    """Returns the result of the run, the last line that `throng flood` has printed."""
    lines = output.splitlines()
    return json.loads(lines[-1])["summary"] if lines else sys.exit("throng flood has printed no result")
