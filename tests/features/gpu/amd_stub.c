/* AMD SMI's library without a driver: what the reader calls through `amdsmi` 7.0, with figures of its own.
 *
 * Keys of the machine, with i a GPU, f a function without its "amdsmi_get_" prefix:
 *   count        GPUs (2)
 *   return.f     what f returns (0)
 *   mi200        power, temperature and clock as an MI200 tells them: the average, at the edge, none
 *   processes.i  how many compute on it: ids 4000 + 100 i and up, of 1, 2, … GiB
 */
#include <stdint.h>

#include "machine.h"

#define GPUS 4
#define NOT_SUPPORTED 2
#define NOT_INITIALISED 32

typedef struct { uint32_t gfx, umc, mm, reserved[13]; } engine_usage;
typedef struct {
    uint64_t socket;
    uint32_t current, average;
    uint64_t voltages[3];
    uint32_t limit, padding;
    uint64_t reserved[18];
} power_info;
typedef struct { uint32_t now, least, most; uint8_t is_locked, sleep, padding[2]; uint32_t reserved[4]; } clock_info;
typedef struct { uint64_t corrected, uncorrected, deferred, reserved[5]; } error_count;
typedef struct {
    char market_name[256];
    uint32_t vendor;
    char vendor_name[256];
    uint32_t subvendor;
    uint64_t device;
    uint32_t revision;
    char serial[256];
    uint32_t oam, units, padding;
    uint64_t graphics;
    uint32_t subsystem, reserved[21];
} __attribute__((packed)) asic_info;
typedef struct { char version[256], date[256], name[256]; } driver_info;
typedef struct {
    char name[256];
    uint32_t pid, padding;
    uint64_t memory, gfx, enc;
    uint32_t reserved_engine[12];
    uint64_t gtt, cpu, vram;
    uint32_t reserved_memory[10];
    char container[256];
    uint32_t occupancy, reserved[11];
} __attribute__((packed)) process_info;

static int opened, socket_of_all, gpus[GPUS];

static int code(const char *name) {
    char key[64];
    snprintf(key, sizeof key, "return.%s", name);
    int result = (int)setting(key, 0);
    return result || opened || !strcmp(name, "init") ? result : NOT_INITIALISED;
}

#define CHECK(name) do { int result = code(#name); if (result) return result; } while (0)

static int index_of(const void *gpu) { return (int)((const int *)gpu - gpus); }

int amdsmi_init(uint64_t flags) { CHECK(init); opened = 1; return flags == 2 ? 0 : 1; }
int amdsmi_shut_down(void) { CHECK(shut_down); opened = 0; return 0; }

int amdsmi_get_socket_handles(uint32_t *count, void **found) {
    CHECK(socket_handles);
    *count = 1;
    if (found) found[0] = &socket_of_all;
    return 0;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **found) {
    CHECK(processor_handles);
    if (socket != &socket_of_all) return 1;
    *count = (uint32_t)setting("count", 2);
    for (uint32_t i = 0; found && i < *count; i++) found[i] = &gpus[i];
    return 0;
}

int amdsmi_get_gpu_device_uuid(void *gpu, uint32_t *length, char *uuid) {
    CHECK(gpu_device_uuid);
    snprintf(uuid, *length, "75ff74b9-0000-1000-80b7-%012d", index_of(gpu));
    return 0;
}

int amdsmi_get_gpu_asic_info(void *gpu, asic_info *info) {
    CHECK(gpu_asic_info);
    (void)gpu;
    memset(info, 0, sizeof *info);
    strcpy(info->market_name, "AMD Instinct MI300X");
    strcpy(info->serial, "0x1F");
    return 0;
}

int amdsmi_get_gpu_driver_info(void *gpu, driver_info *info) {
    CHECK(gpu_driver_info);
    (void)gpu;
    memset(info, 0, sizeof *info);
    strcpy(info->version, "6.14.14");
    strcpy(info->name, "amdgpu");
    return 0;
}

int amdsmi_get_gpu_activity(void *gpu, engine_usage *usage) {
    CHECK(gpu_activity);
    *usage = (engine_usage){.gfx = 37 + (uint32_t)index_of(gpu), .umc = 99, .mm = 0xFFFF};
    return 0;
}

int amdsmi_get_gpu_memory_usage(void *gpu, int kind, uint64_t *bytes) {
    CHECK(gpu_memory_usage);
    *bytes = kind ? 1 : (150ull << 30) + (uint64_t)index_of(gpu);
    return 0;
}

int amdsmi_get_gpu_memory_total(void *gpu, int kind, uint64_t *bytes) {
    CHECK(gpu_memory_total);
    (void)gpu;
    *bytes = kind ? 1 : 192ull << 30;
    return 0;
}

int amdsmi_get_power_info(void *gpu, power_info *info) {
    CHECK(power_info);
    uint32_t watts = 612 + (uint32_t)index_of(gpu);
    *info = (power_info){.socket = watts, .current = watts, .average = 0xFFFF};
    if (setting("mi200", 0)) *info = (power_info){.socket = watts, .current = 0xFFFF, .average = watts};
    return 0;
}

int amdsmi_get_energy_count(void *gpu, uint64_t *count, float *resolution, uint64_t *stamp) {
    CHECK(energy_count);
    *count = 1000000 + (uint64_t)index_of(gpu);
    *resolution = 15.25f; /* microjoules */
    *stamp = 1;
    return 0;
}

int amdsmi_get_temp_metric(void *gpu, int sensor, int metric, int64_t *celsius) {
    CHECK(temp_metric);
    int is_mi200 = setting("mi200", 0) != 0;
    if (metric || sensor != !is_mi200) return NOT_SUPPORTED;
    *celsius = 41 + index_of(gpu);
    return 0;
}

int amdsmi_get_clock_info(void *gpu, int kind, clock_info *info) {
    CHECK(clock_info);
    *info = (clock_info){.now = kind ? 1 : setting("mi200", 0) ? 0xFFFFFFFF : 2100 + (uint32_t)index_of(gpu)};
    return 0;
}

int amdsmi_get_gpu_total_ecc_count(void *gpu, error_count *count) {
    CHECK(gpu_total_ecc_count);
    *count = (error_count){.corrected = 5, .uncorrected = (uint64_t)index_of(gpu), .deferred = 9};
    return 0;
}

int amdsmi_get_gpu_process_list(void *gpu, uint32_t *count, process_info *found) {
    char key[32];
    CHECK(gpu_process_list);
    snprintf(key, sizeof key, "processes.%d", index_of(gpu));
    *count = (uint32_t)setting(key, 0);
    for (uint32_t i = 0; i < *count; i++) {
        memset(found + i, 0, sizeof *found);
        found[i].pid = 4000 + 100 * (uint32_t)index_of(gpu) + i;
        found[i].memory = 1;
        found[i].vram = (uint64_t)(i + 1) << 30;
    }
    return 0;
}
