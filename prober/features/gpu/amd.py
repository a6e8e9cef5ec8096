"""Reads AMD's GPUs through AMD SMI's Python library (module `amdsmi` of ROCm, imported only if AMD's driver is loaded).

All functions block, like those of `reader`. Names and units are those of `amdsmi` 6.4 to 7.0; 6.2 names the energy differently, so it
is absent there. A partition is listed as a separate GPU.
"""

import contextlib
import importlib
import io
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prober.measure.gpu_reading import GpuReading

DRIVER = Path("/sys/module/amdgpu")  # visible in containers too
_REFUSED = {2, 3, 10}  # permanent: not supported, not yet implemented, no permission

# Standard output belongs to the process: of two threads that redirect it at once, one would restore the other's redirection.
_LOADING = threading.Lock()


class AmdReader:
    """The AMD GPUs of this machine. trouble: why the last read failed for all GPUs, or ""; refused: see `Reader.refused`"""

    def __init__(self, smi: Any) -> None:
        self._smi = smi
        self.refused: dict[str, dict[str, str]] = {}
        self.trouble = ""
        handles = smi.amdsmi_get_processor_handles()
        info = self._query("", "amdsmi_get_gpu_driver_info", handles[0]) if handles else None
        self.driver = str(info["driver_version"]) if info else ""

    def read(self) -> list[GpuReading]:
        """Read every GPU; those that do not answer are left out. Errors of GPUs and driver are not raised."""
        devices: list[GpuReading] = []
        self.trouble = ""
        try:
            for index, handle in enumerate(self._handles()):
                uuid = self._query("", "amdsmi_get_gpu_device_uuid", handle)
                if uuid is not None:
                    devices.append(self._device(index, uuid, handle))
        except self._smi.AmdSmiException as error:
            self.trouble = _text(error)
        return devices

    def close(self) -> None:
        """Release the library; errors are ignored."""
        with contextlib.suppress(self._smi.AmdSmiException):
            self._smi.amdsmi_shut_down()

    def _handles(self) -> list[Any]:
        """Handles of the GPUs. Any user of the library who closes it closes it for the whole process."""
        try:
            return list(self._smi.amdsmi_get_processor_handles())
        except self._smi.AmdSmiLibraryException:
            self._smi.amdsmi_init()
            return list(self._smi.amdsmi_get_processor_handles())

    def _device(self, index: int, uuid: str, handle: Any) -> GpuReading:
        smi = self._smi
        power = self._query(uuid, "amdsmi_get_power_info", handle) or {}
        powers = (_number(power, name) for name in ("current_socket_power", "average_socket_power"))
        energy = self._query(uuid, "amdsmi_get_energy_count", handle) or {}
        count, resolution = _number(energy, "energy_accumulator"), _number(energy, "counter_resolution")
        current = smi.AmdSmiTemperatureMetric.CURRENT
        celsius = self._query(uuid, "amdsmi_get_temp_metric", handle, smi.AmdSmiTemperatureType.HOTSPOT, current)
        if celsius is None:
            celsius = self._query(uuid, "amdsmi_get_temp_metric", handle, smi.AmdSmiTemperatureType.EDGE, current)
        busy = _number(self._query(uuid, "amdsmi_get_gpu_activity", handle) or {}, "gfx_activity")
        megahertz = _number(self._query(uuid, "amdsmi_get_clock_info", handle, smi.AmdSmiClkType.GFX) or {}, "clk")
        ecc = self._query(uuid, "amdsmi_get_gpu_total_ecc_count", handle) or {}
        running = self._query(uuid, "amdsmi_get_gpu_process_list", handle)
        asic = self._query(uuid, "amdsmi_get_gpu_asic_info", handle) or {}
        return GpuReading(
            index=index,
            uuid=uuid,
            name=asic.get("market_name", "AMD GPU"),
            utilization_ratio=None if busy is None else busy / 100,
            memory_used_bytes=self._query(uuid, "amdsmi_get_gpu_memory_usage", handle, smi.AmdSmiMemoryType.VRAM),
            memory_total_bytes=self._query(uuid, "amdsmi_get_gpu_memory_total", handle, smi.AmdSmiMemoryType.VRAM),
            power_watts=next((watts for watts in powers if watts), None),  # MI300 and later, MI200
            energy_joules=count * resolution / 1e6 if count is not None and resolution is not None else None,
            temperature_celsius=None if celsius is None else float(celsius),  # its documentation says millidegrees
            sm_clock_hertz=None if megahertz is None else megahertz * 1e6,
            ecc_corrected_errors=ecc.get("correctable_count"),
            ecc_uncorrected_errors=ecc.get("uncorrectable_count"),
            processes=None
            if running is None
            else {process["pid"]: process["memory_usage"]["vram_mem"] for process in running},
        )

    def _query(self, uuid: str, name: str, handle: Any, *arguments: Any) -> Any:
        """Call the library; None if the value is absent. A call that the GPU does not support or forbids is not repeated."""
        refused = self.refused.setdefault(uuid, {}) if uuid else {}
        key = " ".join([name, *(str(argument.name) for argument in arguments)])
        if key in refused:
            return None
        try:
            return getattr(self._smi, name)(handle, *arguments)
        except self._smi.AmdSmiLibraryException as error:
            if error.get_error_code() in _REFUSED:
                refused[key] = _text(error)
            return None


def open_amd_reader() -> tuple[AmdReader | None, str]:
    """Open AMD's library: (reader, text for the log). The reader is None without driver, library or GPU; the text is "" without
    driver or `amdsmi`."""
    if not DRIVER.exists():
        return None, ""
    try:
        with _LOADING, contextlib.redirect_stdout(io.StringIO()):  # amdsmi prints if it finds no library
            smi = importlib.import_module("amdsmi")
    except ModuleNotFoundError:
        return None, ""
    except (ImportError, KeyError, OSError, AttributeError) as error:
        return None, f"amdsmi cannot be loaded: {error}"
    try:
        smi.amdsmi_init()
        reader = AmdReader(smi)
        if count := len(reader.read()):
            return reader, f"{count} AMD GPU{'s' if count > 1 else ''}, driver {reader.driver or 'of unknown version'}"
        reader.close()
        return None, f"amdsmi: {reader.trouble or 'the driver shows no GPU'}"
    except smi.AmdSmiException as error:
        return None, f"amdsmi: {_text(error)}"


def _number(values: Mapping[str, Any], name: str) -> float | None:
    """A number in a dictionary; None if it is `N/A` or the largest integer, which mean that there is no value."""
    value = values.get(name)
    return value if isinstance(value, int | float) and value not in (0xFFFF, 0xFFFF_FFFF, 2**64 - 1) else None


def _text(error: Exception) -> str:
    return " ".join(str(error).split())
