"""scripts/figures.d/machine.py -- which machine this is, as each figure's file says it."""

import os
import re

KINDS = ("xeon", "epyc", "ryzen", "threadripper", "opteron", "core", "neoverse", "graviton", "altra", "power")


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def field(text, name):
    found = re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else ""


def describe():
    cpus = sorted(os.sched_getaffinity(0))
    siblings = read(f"/sys/devices/system/cpu/cpu{cpus[0]}/topology/thread_siblings_list").strip()
    memory = re.search(r"MemTotal:\s+(\d+) kB", read("/proc/meminfo"))
    load = read("/proc/loadavg").split()
    return {
        "cpu": field(read("/proc/cpuinfo"), "model name") or os.uname().machine,
        "cpus": len(cpus),
        "siblings_of_first": siblings,
        "memory_bytes": int(memory.group(1)) * 1024 if memory else None,
        "kernel": ".".join(re.findall(r"\d+", os.uname().release)[:2]),  # what comes after is a builder's
        "system": field(read("/etc/os-release").replace("=", ":"), "PRETTY_NAME").strip('"'),
        "load_before": float(load[0]) if load else None,
    }


def short_name(about):
    """Such as xeon16: the folder of this machine's figures."""
    words = re.findall(r"[a-z]+", about["cpu"].lower())
    return next((kind for kind in KINDS if kind in words), "cpu") + str(about["cpus"])
