/* The machine that a stub shows: NVML_STUB names a file of `key=value` lines (integers, 0x too), read at each call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long setting(const char *key, long otherwise) {
    char line[128];
    size_t length = strlen(key);
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == '=') {
            otherwise = strtol(line + length + 1, NULL, 0);
            break;
        }
    if (file) fclose(file);
    return otherwise;
}
