"""scripts/figures.d/figure_ucx.py -- two-sided transfers of sptune against ucx_perftest's tag rate, two processes.

tag_bw sends one way: one process copies in while the other copies out. `sendrecv` of two ranks goes both ways at once: each process
does both for half of the bytes. So the sum over both directions is compared with tag_bw's rate; both are what two CPUs move.
"""

import os
import shutil
import socket
import subprocess
import time
from functools import partial

from figure import Row, mib
from ours import Unmeasured
from rounds import alternate

NAME = "ucx"
ABOUT = "send/recv of two ranks against ucx_perftest tag_bw, bytes per second of both CPUs"
SIZES = (65536, 262144, 1048576, 4194304, 16777216)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def tag_bw(size, iterations, cpus, transport):
    """Overall microseconds per message of one run."""
    words = ["ucx_perftest", "-t", "tag_bw", "-s", str(size), "-n", str(iterations), "-w", "10", "-f", "-v"]
    words += ["-p", str(free_port())]
    env = {**os.environ, "UCX_TLS": transport, "UCX_LOG_FILE": "stderr"}
    server = subprocess.Popen(
        [*words, "-c", str(cpus[0])], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(50):  # until the server listens
            done = subprocess.run(
                [words[0], "127.0.0.1", *words[1:], "-c", str(cpus[1])], env=env, capture_output=True, text=True, timeout=120
            )
            if done.returncode == 0:
                break
            time.sleep(0.1)
        else:
            raise Unmeasured(f"ucx_perftest: exit {done.returncode}: {done.stderr.strip()[-200:]}")
        server.wait(10)
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    return read(done.stdout)


def read(text):
    """The CSV's column overall_lat, microseconds; MB/s would be MiB/s."""
    lines = [line.strip().split(",") for line in text.splitlines() if line.count(",") > 3]
    heads = [line for line in lines if "overall_lat" in line]
    if not heads or lines[-1] in heads:
        raise Unmeasured(f"ucx_perftest printed {text.strip()[-200:]!r}")
    return float(lines[-1][heads[-1].index("overall_lat")])


def run(context):
    if shutil.which("ucx_perftest") is None:
        raise Unmeasured("no ucx_perftest; Debian's package is ucx-utils")
    if context.machine["cpus"] < 2:
        raise Unmeasured("one CPU")
    for size in SIZES[1:4] if context.quick else SIZES:
        yield partial(one, context, size)


def one(context, size):
    wanted = {"ranks": 2, "op": "sendrecv", "bytes": size, "threads": 1}
    cpus = sorted(os.sched_getaffinity(0))[:2]
    transport = {}

    def ours(n):
        (row,) = context.ours.rows(n, "collective", **wanted)
        transport["name"] = row["transport"]
        return {"sendrecv_us": row["times_us"]}

    def theirs(n):
        tls = "sysv,self" if "sysv" in transport.get("name", "") else "posix,self"
        return {"tag_bw_us": [tag_bw(size, max(10, n // 4), cpus, tls) for _ in range(4)]}

    rounds = alternate({"sptune": ours, "ucx": theirs}, context.rounds, context.seconds)
    row = Row(f"{mib(size)} {transport['name']}", rounds, threads=1, ranks=2)
    row.command = context.ours.command("collective", **wanted)
    row.peer_command = ["ucx_perftest", "-t", "tag_bw", "-s", str(size)]
    row.keep("sendrecv", "tag_bw")
    row.add("rate of both directions / tag_bw", lambda m: 2 * m["tag_bw_us"] / m["sendrecv_us"], 0.9)
    return row
