/* A driver library without a driver: what nvidia-ml-py calls, with figures of its own.
 *
 * A test changes the machine while it is being read. Keys, with i a GPU, s a slot, f a function without its "nvml" and "Device"
 * prefixes:
 *   count           GPUs (2)
 *   return.f[.i]    what f returns (0), for all GPUs or one; return.f = 13 stands for a function that an old driver lacks
 *   lost.i          the GPU is lost; with sticky=1 until the library is opened again
 *   mig.i           partitioned;  slot.i.s  the instance in that slot (0: none);  uuid.i.s  tells instances of one slot apart
 *   xid.i           faults so far;  reasons.i  why it is slow;  gpm.i  can count (1);  field.N[.scope].i  a counter
 *   processes.i     how many compute on it: ids 4000 + 100 i and up, of 1, 2, … GiB, the last of unknown size with unsized.i
 *   type.N          how wide a counter is (3: 64 bits);  metric.N  in thousandths of a per cent (-1: not a number)
 */
#include <pthread.h>
#include <math.h>
#include <unistd.h>

#include "machine.h"

#define OK 0
#define UNINITIALIZED 1
#define INVALID 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define LOST 15
#define GPUS 4
#define SLOTS 7

typedef struct { int gpu, slot; } device;
typedef struct { int gpu, instance, number; } sample;
typedef struct { unsigned watched; } events;
typedef unsigned long long u64;
typedef struct { unsigned gpu, memory; } rate_values;
typedef struct { u64 total, free, used; } memory_values;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_values_v2;
typedef struct { unsigned version, sensor; int celsius; } temperature_value;
typedef struct { device *on; u64 kind, data; unsigned instance, compute; } event_data;
typedef struct { unsigned version, supported; } support_value;

static device gpus[GPUS], slots[GPUS][SLOTS];
static int opened, lost[GPUS], numbers;
static long delivered[GPUS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { char name[48]; int calls; } counted[64];

static long of(const char *what, int gpu, long otherwise) {
    char key[64];
    snprintf(key, sizeof key, "%s.%d", what, gpu);
    return setting(key, otherwise);
}

/* How often a function was called, for tests to ask. */
int stub_calls(const char *name) {
    for (int i = 0; i < 64; i++)
        if (!strcmp(counted[i].name, name)) return counted[i].calls;
    return 0;
}

static void count(const char *name) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 64; i++)
        if (!counted[i].name[0] || !strcmp(counted[i].name, name)) {
            strcpy(counted[i].name, name);
            counted[i].calls++;
            break;
        }
    pthread_mutex_unlock(&lock);
}

static int is_lost(int gpu) {
    if (of("lost", gpu, 0)) lost[gpu] = 1;
    else if (!setting("sticky", 0)) lost[gpu] = 0;
    return lost[gpu];
}

static int code(const char *name, const device *on) {
    char key[64];
    count(name);
    if (!opened) return UNINITIALIZED;
    if (on && is_lost(on->gpu)) return LOST;
    snprintf(key, sizeof key, "return.%s", name);
    return (int)(on ? of(key, on->gpu, setting(key, 0)) : setting(key, 0));
}

#define CHECK(name, on) do { int result = code(name, on); if (result) return result; } while (0)
#define WHOLE(name, on) do { CHECK(name, on); if ((on)->slot >= 0) return NOT_SUPPORTED; } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    count("Init");
    int result = (int)setting("return.Init", 0);
    if (result) return result;
    opened = 1;
    for (int i = 0; i < GPUS; i++) {
        lost[i] = 0;
        gpus[i] = (device){i, -1};
        for (int s = 0; s < SLOTS; s++) slots[i][s] = (device){i, s};
    }
    return OK;
}

int nvmlShutdown(void) { CHECK("Shutdown", NULL); opened = 0; return OK; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    CHECK("SystemGetDriverVersion", NULL);
    snprintf(version, length, "570.1.%ld", setting("driver", 0));
    return OK;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    CHECK("SystemGetCudaDriverVersion", NULL);
    *version = 12080;
    return OK;
}

int nvmlDeviceGetNvLinkState(device *on, unsigned link, unsigned *active) {
    WHOLE("GetNvLinkState", on);
    if (link >= (unsigned)setting("links", 0)) return INVALID;
    *active = link != 1;
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *number) { CHECK("GetCount", NULL); *number = (unsigned)setting("count", 2); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **found) {
    if (index >= GPUS) return INVALID;
    CHECK("GetHandleByIndex", &gpus[index]);
    *found = &gpus[index];
    return OK;
}

int nvmlDeviceGetUUID(device *on, char *uuid, unsigned length) {
    char key[32];
    CHECK("GetUUID", on);
    snprintf(key, sizeof key, "uuid.%d", on->gpu);
    if (on->slot < 0) snprintf(uuid, length, "GPU-%d", on->gpu);
    else snprintf(uuid, length, "MIG-%d-%d-%ld", on->gpu, on->slot, of(key, on->slot, 0));
    return OK;
}

int nvmlDeviceGetName(device *on, char *name, unsigned length) {
    CHECK("GetName", on);
    snprintf(name, length, on->slot < 0 ? "Stub H1" : "Stub H1 MIG 1g.10gb");
    return OK;
}

int nvmlDeviceGetUtilizationRates(device *on, rate_values *rates) {
    WHOLE("GetUtilizationRates", on);
    if (of("mig", on->gpu, 0)) return NOT_SUPPORTED;
    rates->gpu = 37 + (unsigned)on->gpu;
    rates->memory = 99;
    return OK;
}

int nvmlDeviceGetMemoryInfo(device *on, memory_values *memory) {
    CHECK("GetMemoryInfo", on);
    u64 total = (u64)setting("memory", 80000);
    *memory = (memory_values){total, total - 12000, 12000};
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(device *on, memory_values_v2 *memory) {
    CHECK("GetMemoryInfo_v2", on);
    if (memory->version != (2u << 24 | sizeof *memory)) return 25;
    memory->total = on->slot < 0 ? (u64)setting("memory", 80000) : 10000;
    memory->reserved = 2000;
    memory->used = (on->slot < 0 ? 10000 : 1000) + (u64)on->gpu;
    return OK;
}

typedef struct { unsigned pid; u64 used; unsigned instance, compute; } process_info;

int nvmlDeviceGetComputeRunningProcesses_v3(device *on, unsigned *number, process_info *found) {
    CHECK("GetComputeRunningProcesses", on);
    unsigned room = *number;
    *number = on->slot < 0 ? (unsigned)of("processes", on->gpu, 0) : 0;
    if (*number > room) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *number; i++)
        found[i] = (process_info){4000 + 100 * (unsigned)on->gpu + i, (u64)(i + 1) << 30, 0, 0};
    if (*number && of("unsized", on->gpu, 0)) found[*number - 1].used = ~0ull;
    return OK;
}

/* A getter of one number of a whole GPU. */
#define GETTER(name, type, number) \
    int nvmlDevice##name(device *on, type *out) { WHOLE(#name, on); *out = (type)(number); return OK; }

GETTER(GetIndex, unsigned, on->gpu)
GETTER(GetMaxPcieLinkGeneration, unsigned, 5)
GETTER(GetMaxPcieLinkWidth, unsigned, 16)
GETTER(GetPowerUsage, unsigned, 250500 + 1000 * on->gpu)
GETTER(GetTotalEnergyConsumption, u64, 5000000000500 + 1000 * on->gpu)
GETTER(GetCurrentClocksEventReasons, u64, of("reasons", on->gpu, 1))
GETTER(GetCurrentClocksThrottleReasons, u64, 0x80)
GETTER(GetMaxMigDeviceCount, unsigned, SLOTS)

int nvmlDeviceGetTemperatureV(device *on, temperature_value *temperature) {
    WHOLE("GetTemperatureV", on);
    if (temperature->version != (1u << 24 | sizeof *temperature)) return 25;
    temperature->celsius = 41 + on->gpu;
    return OK;
}

int nvmlDeviceGetTemperature(device *on, unsigned sensor, unsigned *celsius) {
    (void)sensor;
    WHOLE("GetTemperature", on);
    *celsius = 61 + (unsigned)on->gpu;
    return OK;
}

int nvmlDeviceGetClockInfo(device *on, unsigned which, unsigned *megahertz) {
    WHOLE("GetClockInfo", on);
    *megahertz = which == 1 ? 1410 + (unsigned)on->gpu : 1;
    return OK;
}

int nvmlDeviceGetTotalEccErrors(device *on, unsigned kind, unsigned since, u64 *errors) {
    WHOLE("GetTotalEccErrors", on);
    if (since != 0) return INVALID;
    *errors = kind == 0 ? 5 + (u64)on->gpu : (u64)on->gpu;
    return OK;
}

typedef struct { unsigned field, scope; long long stamp, latency; unsigned type, result; u64 value; } field_value;

int nvmlDeviceGetFieldValues(device *on, int number, field_value *values) {
    char key[48];
    WHOLE("GetFieldValues", on);
    for (int i = 0; i < number; i++) {
        if (values[i].scope) snprintf(key, sizeof key, "field.%u.%u", values[i].field, values[i].scope);
        else snprintf(key, sizeof key, "field.%u", values[i].field);
        long value = of(key, on->gpu, -1);
        snprintf(key, sizeof key, "type.%u", values[i].field);
        values[i].type = (unsigned)setting(key, 3);
        values[i].result = value < 0 ? NOT_SUPPORTED : OK;
        values[i].value = value < 0 ? 0 : (u64)value;
    }
    return OK;
}

int nvmlDeviceGetMigMode(device *on, unsigned *now, unsigned *next) {
    WHOLE("GetMigMode", on);
    *now = *next = (unsigned)of("mig", on->gpu, 0);
    return OK;
}

static long instance_in(int gpu, int slot) {
    char key[32];
    snprintf(key, sizeof key, "slot.%d", gpu);
    return of(key, slot, 0);
}

int nvmlDeviceGetMigDeviceHandleByIndex(device *on, unsigned index, device **found) {
    WHOLE("GetMigDeviceHandleByIndex", on);
    if (index >= SLOTS || !instance_in(on->gpu, (int)index)) return NOT_FOUND;
    *found = &slots[on->gpu][index];
    return OK;
}

int nvmlDeviceGetGpuInstanceId(device *on, unsigned *instance) {
    CHECK("GetGpuInstanceId", on);
    if (on->slot < 0) return NOT_SUPPORTED;
    *instance = (unsigned)instance_in(on->gpu, on->slot);
    return OK;
}

int nvmlEventSetCreate(events **set) {
    CHECK("EventSetCreate", NULL);
    *set = calloc(1, sizeof **set);
    return OK;
}

int nvmlEventSetFree(events *set) { CHECK("EventSetFree", NULL); free(set); return OK; }

int nvmlDeviceRegisterEvents(device *on, u64 kinds, events *set) {
    WHOLE("RegisterEvents", on);
    if (kinds != 8) return INVALID;
    set->watched |= 1u << on->gpu;
    return OK;
}

int nvmlEventSetWait_v2(events *set, event_data *event, unsigned milliseconds) {
    CHECK("EventSetWait", NULL);
    for (unsigned waited = 0; waited <= milliseconds; waited++) {
        for (int i = 0; i < GPUS; i++) {
            if (!(set->watched & 1u << i)) continue;
            if (is_lost(i)) return LOST;
            if (of("xid", i, 0) > delivered[i]) {
                delivered[i]++;
                event->on = &gpus[i];
                event->kind = 8;
                event->data = 79;
                return OK;
            }
        }
        usleep(1000);
    }
    return TIMEOUT;
}

int nvmlGpmQueryDeviceSupport(device *on, support_value *support) {
    WHOLE("GpmQueryDeviceSupport", on);
    if (support->version != 1) return 25;
    support->supported = (unsigned)of("gpm", on->gpu, 1);
    return OK;
}

int nvmlGpmSampleAlloc(sample **taken) { CHECK("GpmSampleAlloc", NULL); *taken = calloc(1, sizeof **taken); return OK; }

int nvmlGpmSampleFree(sample *taken) { CHECK("GpmSampleFree", NULL); free(taken); return OK; }

int nvmlGpmSampleGet(device *on, sample *taken) {
    WHOLE("GpmSampleGet", on);
    *taken = (sample){on->gpu, 0, ++numbers};
    return OK;
}

int nvmlGpmMigSampleGet(device *on, unsigned instance, sample *taken) {
    WHOLE("GpmMigSampleGet", on);
    *taken = (sample){on->gpu, (int)instance, ++numbers};
    return OK;
}

typedef struct { unsigned metric, result; double value; const char *names[3]; } metric_value;
typedef struct { unsigned version, number; sample *older, *newer; metric_value metrics[]; } metrics_request;

/* The setting, or 5 times the metric's number, plus the instance: so a figure shows whose it is. PCIe's are refused if not set. */
int nvmlGpmMetricsGet(metrics_request *get) {
    char key[32];
    CHECK("GpmMetricsGet", NULL);
    if (get->version != 1) return 25;
    if (get->older->gpu != get->newer->gpu || get->older->instance != get->newer->instance) return INVALID;
    if (get->older->number >= get->newer->number || !get->older->number) return INVALID;
    for (unsigned i = 0; i < get->number; i++) {
        snprintf(key, sizeof key, "metric.%u", get->metrics[i].metric);
        long value = setting(key, 1000 * (5 * (long)get->metrics[i].metric + get->older->instance));
        int is_refused = get->metrics[i].metric >= 20 && setting(key, -1) < 0;
        snprintf(key, sizeof key, "return.metric.%u", get->metrics[i].metric);
        get->metrics[i].result = (unsigned)setting(key, is_refused ? 3 : 0);
        get->metrics[i].value = value < 0 ? NAN : (double)value / 1000;
    }
    return OK;
}
