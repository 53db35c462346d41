"""scripts/peers/nvml.py -- what a GPU does now, asked of its driver within the process: clocks, heat, power, what holds the clocks down, and how
many processes compute on it. Some tens of microseconds; a program of its own would leave the GPU idle meanwhile, and its clocks would rise.

    gpu = Nvml("GPU-5b0d...")   # as torch.cuda.get_device_properties(0).uuid says it; None: the first that the driver has
    gpu.now()                   # {"sm_mhz": 1980.0, ...}; what the driver does not tell is left out, all of it where there is no NVML
"""

import contextlib
import ctypes
import os

HELD = {"held_by_power": 0x4, "held_by_heat": 0x20 | 0x40, "held_by_board": 0x8 | 0x80}  # clock event reasons
CLOCK_SM, CLOCK_MEMORY, CORE = 1, 2, 0  # of nvmlClockType_t and nvmlTemperatureSensors_t
TOO_SMALL = 7  # NVML_ERROR_INSUFFICIENT_SIZE: the count is told all the same


class Nvml:
    def __init__(self, uuid=None):
        self.library = self.gpu = None
        with contextlib.suppress(OSError):
            self.library = ctypes.CDLL(os.environ.get("SPTUNE_NVML", "libnvidia-ml.so.1"))
            if self.call("nvmlInit_v2") == 0:
                self.gpu = self.find(uuid)

    def call(self, name, *arguments):
        """Its code; None where this library has no such call."""
        function = getattr(self.library, name, None)
        return function(*arguments) if function else None

    def find(self, uuid):
        """The handle of that GPU; None where the driver has no such one."""
        count, name = ctypes.c_uint(0), ctypes.create_string_buffer(96)
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for i in range(count.value):
            gpu = ctypes.c_void_p()
            if self.call("nvmlDeviceGetHandleByIndex_v2", i, ctypes.byref(gpu)) != 0 or self.call("nvmlDeviceGetUUID", gpu, name, len(name)) != 0:
                continue
            if uuid in (None, name.value.decode()):
                return gpu
        return None

    def number(self, name, *before, kind=ctypes.c_uint):
        """What a call says in its last argument; None where it refuses."""
        out = kind()
        return out.value if self.call(name, self.gpu, *before, ctypes.byref(out)) == 0 else None

    def processes(self):
        count = ctypes.c_uint(0)
        code = self.call("nvmlDeviceGetComputeRunningProcesses_v3", self.gpu, ctypes.byref(count), None)
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
