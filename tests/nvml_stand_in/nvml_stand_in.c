/* A stand-in for libnvidia-ml.so.1 that answers what a profile says.
 *
 * DSDOCTOR_NVML_PROFILE names a file with one answer a line: SCOPE TAB QUESTION TAB ANSWER. The scope is `system`, a GPU (`0`) or a MIG
 * device of a GPU (`0.1`). The question is the name of an NVML function, with its arguments after slashes (nvmlDeviceGetClockInfo/1).
 * The answer is a text or numbers with blanks between them, or one of
 *     error N     return this NVML code
 *     hang        never return
 *     crash       die of a segmentation fault
 * What the profile does not mention is not supported (code 3). `lost_after_calls` in the scope of a GPU lets that many questions pass and
 * answers every later one with 15 (GPU is lost). Functions are left out of a build by -DNAME=other_name.
 *
 * Layouts of structures follow the NVML API reference: https://docs.nvidia.com/deploy/nvml-api/
 */

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15, UNKNOWN = 999 };
enum { MAX_DEVICES = 64, MAX_NUMBERS = 64, KEY_BYTES = 160, TYPE_UNSIGNED_LONG_LONG = 3, INIT_FLAG_NO_GPUS = 1, VERSION_MISMATCH = 25 };

/* What the first member of a versioned structure must hold. */
#define VERSION_OF(type, number) (sizeof(type) | (unsigned)(number) << 24)

typedef int Return;

typedef struct {
    char scope[16];
    long calls;
} Device;

typedef struct {
    char *key;
    char *answer;
} Entry;

static Entry *entries;
static size_t entry_count;
static Device devices[MAX_DEVICES];
static size_t device_count;

/* --- the profile ---------------------------------------------------------------------------------------------------- */

static int by_key(const void *left, const void *right)
{
    return strcmp(((const Entry *)left)->key, ((const Entry *)right)->key);
}

static void load(void)
{
    const char *path = getenv("DSDOCTOR_NVML_PROFILE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char *line = NULL;
    size_t size = 0;
    if (entries)
        return;
    entries = malloc(sizeof *entries);
    while (file && getline(&line, &size, file) > 0) {
        char *answer = strrchr(line, '\t');
        if (!answer)
            continue;
        *answer++ = '\0';
        answer[strcspn(answer, "\n")] = '\0';
        entries = realloc(entries, (entry_count + 1) * sizeof *entries);
        entries[entry_count++] = (Entry){strdup(line), strdup(answer)};
    }
    free(line);
    if (file)
        fclose(file);
    qsort(entries, entry_count, sizeof *entries, by_key);
}

static const char *look_up(const char *scope, const char *question)
{
    char key[KEY_BYTES];
    Entry wanted = {key, NULL};
    Entry *found;
    load();
    snprintf(key, sizeof key, "%s\t%s", scope, question);
    found = bsearch(&wanted, entries, entry_count, sizeof *entries, by_key);
    return found ? found->answer : NULL;
}

static long setting(const char *scope, const char *name, long fallback)
{
    const char *answer = look_up(scope, name);
    return answer ? atol(answer) : fallback;
}

/* Sets *answer and returns SUCCESS, or does what the profile asks for instead. */
static Return ask(const char *scope, const char *question, const char **answer)
{
    *answer = look_up(scope, question);
    if (!*answer)
        return NOT_SUPPORTED;
    if (strncmp(*answer, "error ", 6) == 0)
        return atoi(*answer + 6);
    while (strcmp(*answer, "hang") == 0)
        pause();
    if (strcmp(*answer, "crash") == 0)
        raise(SIGSEGV);
    return SUCCESS;
}

static Return ask_device(Device *device, const char *question, const char **answer)
{
    long limit;
    if (!device)
        return INVALID_ARGUMENT;
    limit = setting(device->scope, "lost_after_calls", -1);
    if (limit >= 0 && device->calls++ >= limit)
        return GPU_IS_LOST;
    return ask(device->scope, question, answer);
}

/* The numbers of an answer; those it does not have are zero. Returns how many there were. */
static size_t numbers(const char *answer, unsigned long long *out, size_t wanted)
{
    size_t found = 0;
    char *end;
    memset(out, 0, wanted * sizeof *out);
    while (found < wanted) {
        unsigned long long number = strtoull(answer, &end, 0);
        if (end == answer)
            break;
        out[found++] = number;
        answer = end;
    }
    return found;
}

static Return give_text(const char *answer, char *buffer, unsigned length)
{
    if (strlen(answer) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(buffer, answer);
    return SUCCESS;
}

static Return device_numbers(Device *device, const char *question, unsigned long long *out, size_t wanted)
{
    const char *answer;
    Return code = ask_device(device, question, &answer);
    if (code == SUCCESS)
        numbers(answer, out, wanted);
    return code;
}

static Return device_at(const char *scope, Device **device)
{
    size_t index;
    for (index = 0; index < device_count; index++)
        if (strcmp(devices[index].scope, scope) == 0)
            break;
    if (index == MAX_DEVICES)
        return UNKNOWN;
    if (index == device_count)
        snprintf(devices[device_count++].scope, sizeof devices->scope, "%s", scope);
    *device = &devices[index];
    return SUCCESS;
}

/* --- shapes of getters ---------------------------------------------------------------------------------------------- */

#define SYSTEM_TEXT(name)                                                                                                               \
    Return name(char *buffer, unsigned length)                                                                                          \
    {                                                                                                                                   \
        const char *answer;                                                                                                             \
        Return code = ask("system", #name, &answer);                                                                                    \
        return code == SUCCESS ? give_text(answer, buffer, length) : code;                                                              \
    }

#define SYSTEM_NUMBER(name)                                                                                                             \
    Return name(int *out)                                                                                                               \
    {                                                                                                                                   \
        const char *answer;                                                                                                             \
        Return code = ask("system", #name, &answer);                                                                                    \
        if (code == SUCCESS)                                                                                                            \
            *out = atoi(answer);                                                                                                        \
        return code;                                                                                                                    \
    }

#define TEXT(name)                                                                                                                      \
    Return name(Device *device, char *buffer, unsigned length)                                                                          \
    {                                                                                                                                   \
        const char *answer;                                                                                                             \
        Return code = ask_device(device, #name, &answer);                                                                               \
        return code == SUCCESS ? give_text(answer, buffer, length) : code;                                                              \
    }

#define NUMBER(name, type)                                                                                                              \
    Return name(Device *device, type *out)                                                                                              \
    {                                                                                                                                   \
        unsigned long long value[1];                                                                                                    \
        Return code = device_numbers(device, #name, value, 1);                                                                          \
        if (code == SUCCESS)                                                                                                            \
            *out = (type)value[0];                                                                                                      \
        return code;                                                                                                                    \
    }

#define TWO_NUMBERS(name, type)                                                                                                         \
    Return name(Device *device, type *first, type *second)                                                                              \
    {                                                                                                                                   \
        unsigned long long value[2];                                                                                                    \
        Return code = device_numbers(device, #name, value, 2);                                                                          \
        if (code == SUCCESS) {                                                                                                          \
            *first = (type)value[0];                                                                                                    \
            *second = (type)value[1];                                                                                                   \
        }                                                                                                                               \
        return code;                                                                                                                    \
    }

#define NUMBER_OF(name, type)                                                                                                           \
    Return name(Device *device, unsigned argument, type *out)                                                                           \
    {                                                                                                                                   \
        unsigned long long value[1];                                                                                                    \
        char question[96];                                                                                                              \
        Return code;                                                                                                                    \
        snprintf(question, sizeof question, "%s/%u", #name, argument);                                                                  \
        code = device_numbers(device, question, value, 1);                                                                              \
        if (code == SUCCESS)                                                                                                            \
            *out = (type)value[0];                                                                                                      \
        return code;                                                                                                                    \
    }

/* --- the system ----------------------------------------------------------------------------------------------------- */

Return nvmlInitWithFlags(unsigned flags)
{
    const char *answer;
    Return code = ask("system", "nvmlInitWithFlags", &answer);
    if (code == NOT_SUPPORTED && setting("system", "nvmlDeviceGetCount_v2", 0) == 0 && !(flags & INIT_FLAG_NO_GPUS))
        return NOT_FOUND;
    return code == NOT_SUPPORTED ? SUCCESS : code;
}

Return nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

Return nvmlShutdown(void)
{
    return SUCCESS;
}

const char *nvmlErrorString(Return code)
{
    switch (code) {
    case SUCCESS: return "Success";
    case NOT_SUPPORTED: return "Not Supported";
    case 25: return "API version mismatch";
    case 27: return "System is not in ready state";
    default: return "Unknown Error";
    }
}

SYSTEM_TEXT(nvmlSystemGetDriverVersion)
SYSTEM_TEXT(nvmlSystemGetNVMLVersion)
SYSTEM_NUMBER(nvmlSystemGetCudaDriverVersion)
SYSTEM_NUMBER(nvmlSystemGetCudaDriverVersion_v2)
SYSTEM_NUMBER(nvmlDeviceGetCount_v2)

Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device)
{
    char scope[16];
    const char *answer;
    Return code;
    snprintf(scope, sizeof scope, "%u", index);
    code = ask(scope, "nvmlDeviceGetHandleByIndex_v2", &answer);
    if (code != SUCCESS && code != NOT_SUPPORTED)
        return code;
    return index < (unsigned)setting("system", "nvmlDeviceGetCount_v2", 0) ? device_at(scope, device) : INVALID_ARGUMENT;
}

/* --- a GPU ---------------------------------------------------------------------------------------------------------- */

TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetVbiosVersion)
TEXT(nvmlDeviceGetBoardPartNumber)
TEXT(nvmlDeviceGetInforomImageVersion)
NUMBER(nvmlDeviceGetMinorNumber, unsigned)
NUMBER(nvmlDeviceGetComputeMode, unsigned)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned)
NUMBER(nvmlDeviceGetPerformanceState, unsigned)
NUMBER(nvmlDeviceGetPowerUsage, unsigned)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned)
NUMBER(nvmlDeviceGetVirtualizationMode, unsigned)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned)
TWO_NUMBERS(nvmlDeviceGetCudaComputeCapability, int)
TWO_NUMBERS(nvmlDeviceGetEccMode, unsigned)
TWO_NUMBERS(nvmlDeviceGetMigMode, unsigned)
NUMBER_OF(nvmlDeviceGetClockInfo, unsigned)
NUMBER_OF(nvmlDeviceGetMaxClockInfo, unsigned)
NUMBER_OF(nvmlDeviceGetTemperature, unsigned)
NUMBER_OF(nvmlDeviceGetNvLinkState, unsigned)
NUMBER_OF(nvmlDeviceGetNvLinkRemoteDeviceType, unsigned)

Return nvmlDeviceGetGspFirmwareVersion(Device *device, char *buffer)
{
    const char *answer;
    Return code = ask_device(device, "nvmlDeviceGetGspFirmwareVersion", &answer);
    return code == SUCCESS ? give_text(answer, buffer, 64) : code;
}

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} PciInfo;

/* Answer: domain bus device [device id]. */
static Return pci_info(Device *device, const char *question, PciInfo *out)
{
    unsigned long long value[4];
    Return code = device_numbers(device, question, value, 4);
    if (code != SUCCESS)
        return code;
    memset(out, 0, sizeof *out);
    out->domain = (unsigned)value[0];
    out->bus = (unsigned)value[1];
    out->device = (unsigned)value[2];
    out->pci_device_id = (unsigned)value[3];
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", out->domain, out->bus & 0xff, out->device & 0xff);
    return SUCCESS;
}

Return nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *out)
{
    return pci_info(device, "nvmlDeviceGetPciInfo_v3", out);
}

Return nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *device, unsigned link, PciInfo *out)
{
    char question[96];
    snprintf(question, sizeof question, "nvmlDeviceGetNvLinkRemotePciInfo_v2/%u", link);
    return pci_info(device, question, out);
}

typedef struct {
    unsigned long long total, free, used;
} Memory;

Return nvmlDeviceGetMemoryInfo(Device *device, Memory *out)
{
    unsigned long long value[3];
    Return code = device_numbers(device, "nvmlDeviceGetMemoryInfo", value, 3);
    if (code == SUCCESS)
        *out = (Memory){value[0], value[1], value[2]};
    return code;
}

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} MemoryV2;

Return nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *out)
{
    unsigned long long value[4];
    Return code = device_numbers(device, "nvmlDeviceGetMemoryInfo_v2", value, 4);
    if (out->version != VERSION_OF(MemoryV2, 2))
        return VERSION_MISMATCH;
    if (code == SUCCESS)
        *out = (MemoryV2){out->version, value[0], value[1], value[2], value[3]};
    return code;
}

typedef struct {
    unsigned gpu, memory;
} Utilization;

Return nvmlDeviceGetUtilizationRates(Device *device, Utilization *out)
{
    unsigned long long value[2];
    Return code = device_numbers(device, "nvmlDeviceGetUtilizationRates", value, 2);
    if (code == SUCCESS)
        *out = (Utilization){(unsigned)value[0], (unsigned)value[1]};
    return code;
}

typedef struct {
    unsigned version, sensor;
    int temperature;
} Temperature;

Return nvmlDeviceGetTemperatureV(Device *device, Temperature *out)
{
    unsigned long long value[1];
    char question[96];
    Return code;
    if (out->version != VERSION_OF(Temperature, 1))
        return VERSION_MISMATCH;
    snprintf(question, sizeof question, "nvmlDeviceGetTemperatureV/%u", out->sensor);
    code = device_numbers(device, question, value, 1);
    if (code == SUCCESS)
        out->temperature = (int)value[0];
    return code;
}

typedef struct {
    unsigned version;
    int margin;
} Margin;

Return nvmlDeviceGetMarginTemperature(Device *device, Margin *out)
{
    unsigned long long value[1];
    Return code = device_numbers(device, "nvmlDeviceGetMarginTemperature", value, 1);
    if (out->version != VERSION_OF(Margin, 1))
        return VERSION_MISMATCH;
    if (code == SUCCESS)
        out->margin = (int)value[0];
    return code;
}

Return nvmlDeviceGetTotalEccErrors(Device *device, unsigned kind, unsigned counter, unsigned long long *out)
{
    char question[96];
    snprintf(question, sizeof question, "nvmlDeviceGetTotalEccErrors/%u/%u", kind, counter);
    return device_numbers(device, question, out, 1);
}

typedef struct {
    unsigned version;
    unsigned long long counters[11];
    unsigned threshold_exceeded;
} SramStatus;

/* Answer: 1 when the threshold is exceeded. */
Return nvmlDeviceGetSramEccErrorStatus(Device *device, SramStatus *out)
{
    unsigned long long value[1];
    Return code = device_numbers(device, "nvmlDeviceGetSramEccErrorStatus", value, 1);
    if (out->version != VERSION_OF(SramStatus, 1))
        return VERSION_MISMATCH;
    if (code == SUCCESS)
        out->threshold_exceeded = (unsigned)value[0];
    return code;
}

Return nvmlDeviceGetRemappedRows(Device *device, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failure)
{
    unsigned long long value[4];
    Return code = device_numbers(device, "nvmlDeviceGetRemappedRows", value, 4);
    if (code != SUCCESS)
        return code;
    *correctable = (unsigned)value[0];
    *uncorrectable = (unsigned)value[1];
    *pending = (unsigned)value[2];
    *failure = (unsigned)value[3];
    return SUCCESS;
}

typedef struct {
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance, compute_instance;
} Process;

/* Answer: pid and bytes of each process; 0 bytes of memory mean that they cannot be told. An empty answer is no process. */
static Return processes(Device *device, const char *question, unsigned *count, Process *out)
{
    unsigned long long value[MAX_NUMBERS];
    const char *answer;
    unsigned room = *count;
    Return code = ask_device(device, question, &answer);
    if (code != SUCCESS)
        return code;
    *count = (unsigned)(numbers(answer, value, MAX_NUMBERS) / 2);
    if (*count > room)
        return INSUFFICIENT_SIZE;
    for (unsigned index = 0; index < *count; index++) {
        unsigned long long bytes = value[2 * index + 1];
        out[index] = (Process){(unsigned)value[2 * index], bytes ? bytes : ~0ULL, ~0U, ~0U};
    }
    return SUCCESS;
}

#define PROCESSES(name)                                                                                                                 \
    Return name(Device *device, unsigned *count, Process *out)                                                                          \
    {                                                                                                                                   \
        return processes(device, #name, count, out);                                                                                    \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)

typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency_us;
    unsigned type;
    Return code;
    unsigned long long value;
} FieldValue;

/* Question: nvmlDeviceGetFieldValues/FIELD/SCOPE; the scope is 0, or the link for fields of NVLink. */
Return nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values)
{
    for (int index = 0; index < count; index++) {
        char question[96];
        unsigned long long value[1];
        FieldValue *field = &values[index];
        snprintf(question, sizeof question, "nvmlDeviceGetFieldValues/%u/%u", field->field, field->scope);
        field->code = device_numbers(device, question, value, 1);
        if (field->code == GPU_IS_LOST)
            return GPU_IS_LOST;
        field->type = TYPE_UNSIGNED_LONG_LONG;
        field->value = value[0];
    }
    return SUCCESS;
}

typedef struct {
    unsigned char cluster[16];
    Return status;
    uint32_t clique;
    unsigned char state;
} Fabric;

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    Return status;
    uint32_t clique;
    unsigned char state;
    uint32_t health_mask;
} FabricV2;

/* Answer: state, status, clique, health mask. */
Return nvmlDeviceGetGpuFabricInfo(Device *device, Fabric *out)
{
    unsigned long long value[4];
    Return code = device_numbers(device, "nvmlDeviceGetGpuFabricInfo", value, 4);
    if (code == SUCCESS)
        *out = (Fabric){.status = (Return)value[1], .clique = (uint32_t)value[2], .state = (unsigned char)value[0]};
    return code;
}

Return nvmlDeviceGetGpuFabricInfoV(Device *device, FabricV2 *out)
{
    unsigned long long value[4];
    Return code = device_numbers(device, "nvmlDeviceGetGpuFabricInfoV", value, 4);
    if (out->version != VERSION_OF(FabricV2, 2))
        return VERSION_MISMATCH;
    if (code != SUCCESS)
        return code;
    out->status = (Return)value[1];
    out->clique = (uint32_t)value[2];
    out->state = (unsigned char)value[0];
    out->health_mask = (uint32_t)value[3];
    return SUCCESS;
}

/* --- MIG ------------------------------------------------------------------------------------------------------------ */

Return nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **out)
{
    char scope[32];
    snprintf(scope, sizeof scope, "%s.%u", device->scope, index);
    return look_up(scope, "nvmlDeviceGetUUID") ? device_at(scope, out) : NOT_FOUND;
}
