"""scripts/peers/nvml.py -- what a GPU does now, asked of its driver within the process: clocks, heat, power, what holds the clocks down, and how
many processes compute on it. Some tens of microseconds; a program of its own would leave the GPU idle meanwhile, and its clocks would rise.

    gpu = Nvml("GPU-5b0d...")   # as torch.cuda.get_device_properties(0).uuid says it; None: the first that the driver has
    gpu.now()                   # {"sm_mhz": 1980.0, ...}; what the driver does not tell is left out, all of it where there is no NVML
"""

import ctypes
import os

HELD = {"held_by_power": 0x4, "held_by_heat": 0x20 | 0x40, "held_by_board": 0x8 | 0x80}  # clock event reasons
CLOCK_SM, CLOCK_MEMORY, CORE = 1, 2, 0  # of nvmlClockType_t and nvmlTemperatureSensors_t
TOO_SMALL = 7  # NVML_ERROR_INSUFFICIENT_SIZE: the count is told all the same


def find(calls, uuid):
    """The handle of that GPU; None where the driver has no such one."""
    count, name = ctypes.c_uint(0), ctypes.create_string_buffer(96)
    calls.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for i in range(count.value):
        gpu = ctypes.c_void_p()
        if calls.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(gpu)) or calls.nvmlDeviceGetUUID(gpu, name, len(name)):
            continue
        if uuid in (None, name.value.decode()):
            return gpu
    return None


class Nvml:
    def __init__(self, uuid=None):
        self.calls = self.gpu = None
        try:
            calls = ctypes.CDLL(os.environ.get("SPTUNE_NVML", "libnvidia-ml.so.1"))
        except OSError:
            return
        if calls.nvmlInit_v2() == 0:
            self.calls, self.gpu = calls, find(calls, uuid)

    def number(self, name, *before, kind=ctypes.c_uint):
        """What a call says in its last argument; None where it refuses."""
        out = kind()
        return out.value if getattr(self.calls, name)(self.gpu, *before, ctypes.byref(out)) == 0 else None

    def processes(self):
        count = ctypes.c_uint(0)
        code = self.calls.nvmlDeviceGetComputeRunningProcesses_v3(self.gpu, ctypes.byref(count), None)
        return count.value if code in (0, TOO_SMALL) else None

    def now(self):
        if self.gpu is None:
            return {}
        milliwatts = self.number("nvmlDeviceGetPowerUsage")
        told = {
            "sm_mhz": self.number("nvmlDeviceGetClockInfo", CLOCK_SM), "memory_mhz": self.number("nvmlDeviceGetClockInfo", CLOCK_MEMORY),
            "gpu_celsius": self.number("nvmlDeviceGetTemperature", CORE), "gpu_watts": None if milliwatts is None else milliwatts / 1e3,
        }  # fmt: skip
        out = {name: float(value) for name, value in told.items() if value is not None}
        reasons = self.number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong) or 0
        out.update({name: 1 for name, bits in HELD.items() if reasons & bits})
        processes = self.processes()
        if processes is not None:
            out["gpu_others"] = max(0, processes - 1)
        return out
