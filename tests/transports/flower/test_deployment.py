"""A real deployment on loopback: SuperLink, SuperNodes, `flwr run`, TLS and authenticated nodes.

The app is the unchanged template. Each run is compared with the same protocol in process.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pandas as pd
import psutil
import pytest
from all_protocols import fitted

from fedlib import FederatedXGBClassifier, HorizontalDBSCAN, datasets
from fedlib.datasets.partition import split_rows
from fedlib.sites import models
from fedlib.transports.flower.transport import LAST_POLL
from fedlib.transports.flower_app import new

pytestmark = pytest.mark.flower

BIN = Path(sys.executable).parent
N_NODES = 3
PATIENCE = 240  # seconds that any step may take on a busy machine


class Deployment:
    """A SuperLink and its SuperNodes, each a process group, with their files in one folder."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = {}
        self.port, *self.node_ports = free_ports(2 + N_NODES)
        self.app = new(folder / "app")
        certify(folder)
        (folder / "home").mkdir()
        (folder / "home" / "config.toml").write_text(
            f'[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{folder / "ca.pem"}"\n'
        )
        self.environment = {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.02",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, name, *command):
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                list(map(str, command)),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def superlink(self):
        tls = {"certfile": "cert.pem", "keyfile": "key.pem", "ca-certfile": "ca.pem"}
        self.start(
            "superlink",
            "flower-superlink",
            *(f"--ssl-{option}={self.folder / file}" for option, file in tls.items()),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
            "--host=127.0.0.1",
            f"--port={self.port}",
        )
        self.wait_for(lambda: connects(self.port), "the SuperLink")

    def register(self, node):
        self.flwr("supernode", "register", self.folder / f"node{node}.pub", "here")

    def supernode(self, node, partition=None):
        partition = node if partition is None else partition
        labels = self.folder / f"labels{node}.csv"
        self.start(
            f"node{node}",
            "flower-supernode",
            f"--superlink=127.0.0.1:{self.port}",
            f"--root-certificates={self.folder / 'ca.pem'}",
            f"--auth-supernode-private-key={self.folder / f'node{node}'}",
            f"--port={self.node_ports[node]}",
            f'--node-config=partition-id={partition} demo=true labels="{labels}"',
        )

    def send(self, name, number):
        """Send a signal to a process and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, number)

    def kill(self, name, first=signal.SIGKILL):
        """End a process and its children."""
        self.send(name, first)
        self.processes[name].wait(timeout=PATIENCE)
        self.send(name, signal.SIGKILL)
        del self.processes[name]

    def close(self):
        """End all processes, including those of ServerApps, which have their own groups."""
        for name in list(self.processes)[::-1]:
            self.kill(name)
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("FLWR_HOME") == self.environment["FLWR_HOME"]:
                    process.kill()

    def flwr(self, *arguments):
        return subprocess.run(
            ["flwr", *map(str, arguments)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        ).stdout

    def run(self, output, **config):
        """Start `flwr run` and return its output folder."""
        config |= {"output": str(self.folder / output)}
        text = " ".join(f"{key.replace('_', '-')}={json.dumps(v)}" for key, v in config.items())
        self.start(output, "flwr", "run", self.app, "here", "--stream", "--run-config", text)
        return self.folder / output

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for(self, condition, what):
        until = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > until:
                logs = "\n".join(
                    f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}"
                    for path in sorted(self.folder.glob("*.log"))
                )
                pytest.fail(f"waited in vain for {what}\n{logs}")
            time.sleep(0.05)

    def result(self, output):
        """Return the arrays, the ledger and the log of a run once it has ended."""
        self.wait_for(lambda: self.processes[output].poll() is not None, f"the run {output}")
        self.kill(output)
        log = self.log(output)
        assert (self.folder / output / "ledger.csv").exists(), log
        ledger = pd.read_csv(
            self.folder / output / "ledger.csv", dtype={"sender": str, "receiver": str}
        )
        return models.load(self.folder / output / "model.npz"), ledger, log

    def count(self, node, pattern):
        """Return how often a pattern, possibly of several lines, occurs in a node's log."""
        return len(re.findall(pattern, self.log(f"node{node}")))

    def wait_for_one_more(self, node, pattern):
        """Return a function that waits until a pattern occurs once more in a node's log."""
        before = self.count(node, pattern)
        return lambda: self.wait_for(
            lambda: self.count(node, pattern) > before, f"{pattern!r} of node {node}"
        )


RECEIVED = "Receiving: train"
ANSWERED = r"Sending: train(?:.*\n){1,3}?.*Sent successfully"  # other lines may lie between
JOINED = "SuperNode ID"
# Seconds after which the server has received a reply: it polls once per second, and the SuperLink
# does not deliver the replies of a node that has left.
TAKEN = 3 * LAST_POLL


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def connects(port):
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def certify(folder):
    """Write an authority, a certificate for the SuperLink, and a pair of keys per node."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def name(text):
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def build(subject, key, *extensions):
        builder = x509.CertificateBuilder(name("authority"), name(subject), key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        today = datetime.now(UTC)
        builder = builder.not_valid_before(today - timedelta(1))
        builder = builder.not_valid_after(today + timedelta(1))
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
        for extension in (*extensions, issuer):
            builder = builder.add_extension(extension, critical=extension is not issuer)
        certificate = builder.sign(authority, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM)

    def private(key, form):
        none = serialization.NoEncryption()
        return key.private_bytes(serialization.Encoding.PEM, form, none)

    authority = ec.generate_private_key(ec.SECP256R1())
    (folder / "ca.pem").write_bytes(
        build("authority", authority, x509.BasicConstraints(ca=True, path_length=None))
    )
    key = ec.generate_private_key(ec.SECP256R1())
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    (folder / "cert.pem").write_bytes(
        build("localhost", key, x509.SubjectAlternativeName(addresses))
    )
    (folder / "key.pem").write_bytes(private(key, serialization.PrivateFormat.PKCS8))
    for node in range(N_NODES + 1):
        key = ec.generate_private_key(ec.SECP384R1())
        path = folder / f"node{node}"
        path.write_bytes(private(key, serialization.PrivateFormat.OpenSSH))
        path.with_suffix(".pub").write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
            )
        )


def fit_in_process(estimator):
    """Return a protocol fitted in process on the same parts."""
    data = datasets.load("moons")
    shares = split_rows(data.X, N_NODES, data.y, random_state=0)
    supervised = getattr(estimator.client_class, "supervised", False)
    return estimator.fit(
        [(data.X[rows], data.y[rows]) if supervised else data.X[rows] for rows in shares]
    )


@pytest.fixture(scope="module")
def here():
    return fit_in_process(HorizontalDBSCAN(cell_size=0.25, min_samples=5))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    deployment = Deployment(tmp_path_factory.mktemp("deployment"))
    try:
        deployment.superlink()
        for node in range(N_NODES):
            deployment.register(node)
            deployment.supernode(node)
        yield deployment
    finally:
        deployment.close()


def assert_same(model, here):
    """Check the parameters and fitted attributes except labels, which stay with the clients."""
    assert model.get_params() == here.get_params()
    assert fitted(model) == fitted(here)


def test_a_run_gives_the_same_as_in_process(deployment, here):
    """An unregistered node with the partition of another takes no part in it."""
    deployment.supernode(N_NODES, partition=0)
    deployment.run("first")
    model, ledger, _ = deployment.result("first")
    deployment.kill(f"node{N_NODES}")
    assert_same(model, here)
    pd.testing.assert_frame_equal(ledger, here.ledger_.to_frame(), check_dtype=False)
    for node, labels in enumerate(here.labels_):
        kept = pd.read_csv(deployment.folder / f"labels{node}.csv")["label"]
        assert kept.tolist() == labels.tolist()
    stranger = deployment.log(f"node{N_NODES}")
    assert "Failed to activate SuperNode" in stranger
    assert "Receiving" not in stranger
    assert not (deployment.folder / f"labels{N_NODES}.csv").exists()


def test_without_a_superlink_the_message_is_the_one_that_the_readme_explains(tmp_path):
    """Flower's program says what is missing, and the app's README what to start."""
    alone = Deployment(tmp_path)  # nothing is started
    done = subprocess.run(
        ["flwr", "run", alone.app, "here"],
        cwd=tmp_path,
        env=alone.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    text = "Connection to the SuperLink is unavailable"
    assert text in done.stdout + done.stderr
    readme = " ".join((alone.app / "README.md").read_text().split())
    assert re.search(f"`{text}` means .*: start `flower-superlink` first", readme)


def test_the_app_simulates_with_flowers_own_command(tmp_path, here):
    """Each node has a part of the demonstration data set, without any configuration."""
    alone = Deployment(tmp_path)
    config = f'[superlink.here]\naddress = "127.0.0.1:{alone.port}"\ninsecure = true\n'
    (tmp_path / "home" / "config.toml").write_text(config)
    options = ("--simulation", "--insecure", "--disable-runtime-dependency-installation")
    nodes = f"num-supernodes={N_NODES} client-resources-num-cpus=1"
    readme = (alone.app / "README.md").read_text()
    assert all(option in readme for option in (*options, nodes))
    command = ("flwr", "run", alone.app, "here", "--stream", "--federation-config", nodes)
    try:
        alone.start(
            *("superlink", "flower-superlink", *options, "--host=127.0.0.1"), f"--port={alone.port}"
        )
        alone.wait_for(lambda: connects(alone.port), "the SuperLink")
        for i in range(3):  # on a busy machine Ray may not start within its own 30 seconds
            name = f"simulated{i}"
            alone.start(name, *command, "--run-config", f'output="{tmp_path / name}"')
            alone.wait_for(lambda name=name: alone.processes[name].poll() is not None, name)
            if "timed out during startup" not in alone.log(name):
                break
        model, ledger, _ = alone.result(name)
    finally:
        alone.close()
    assert_same(model, here)
    pd.testing.assert_frame_equal(ledger, here.ledger_.to_frame(), check_dtype=False)


def test_a_protocol_of_many_exchanges_with_classes(deployment):
    deployment.run("boosting", protocol="xgboost", parameters="n_trees = 1, max_depth = 2")
    model, ledger, _ = deployment.result("boosting")
    here = fit_in_process(FederatedXGBClassifier(n_trees=1, max_depth=2))
    assert_same(model, here)
    pd.testing.assert_frame_equal(ledger, here.ledger_.to_frame(), check_dtype=False)
    assert ledger["step"].max() > 2


def test_a_restarted_node_has_lost_its_state_and_the_run_continues(deployment, here):
    """Node 2 is stopped meanwhile, so that node 1 is back before the next request."""
    received, answered = (
        deployment.wait_for_one_more(2, RECEIVED),
        deployment.wait_for_one_more(1, ANSWERED),
    )
    deployment.run("restart", min_clients=2)
    received()
    deployment.send("node2", signal.SIGSTOP)
    answered()
    time.sleep(TAKEN)
    joined = deployment.wait_for_one_more(1, JOINED)
    deployment.kill("node1", signal.SIGTERM)
    deployment.supernode(1)
    joined()
    deployment.send("node2", signal.SIGCONT)
    model, _, log = deployment.result("restart")
    assert_same(model, here)  # it had sent its counts before
    assert "client 1 was lost: LostState at AssignCells, step 2" in log


def test_a_killed_node_is_lost_and_the_run_continues(deployment, here):
    answered = deployment.wait_for_one_more(1, ANSWERED)
    deployment.run("kill", min_clients=2)
    answered()
    time.sleep(TAKEN)
    deployment.kill("node1")
    model, _, log = deployment.result("kill")
    assert_same(model, here)
    assert "client 1 was lost: NodeUnavailable at AssignCells, step 2" in log
