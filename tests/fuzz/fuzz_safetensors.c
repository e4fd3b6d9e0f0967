/* A safetensors header, after two bytes that give the size of the data area, and the scanner beneath. */
#include <stdlib.h>
#include <string.h>

#include "model/safetensors.h"
#include "model/scan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What st_parse promises: within the area, sizes that fit, names within the text. */
static void check(const struct st_tensor *t, size_t count, uint64_t area, const char *text, size_t n)
{
	uint64_t total = 0;

	for (size_t i = 0; i < count; i++) {
		if (t[i].begin > area || t[i].bytes > area - t[i].begin || t[i].rank > ST_MAX_RANK || !t[i].name_len ||
		    t[i].name < text || t[i].name + t[i].name_len > text + n)
			abort();
		total += t[i].bytes;
	}
	if (total != area)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct st_tensor *t;
	struct ds_err err;
	struct scan s;
	size_t count;
	uint64_t area;

	if (size < 2)
		return 0;
	area = (uint64_t)(data[0] | data[1] << 8);
	data += 2;
	size -= 2;
	if (!st_parse((const char *)data, size, area, "fuzz", &t, &count, &err)) {
		check(t, count, area, (const char *)data, size);
		free(t);
	} else if (!err.text[0] || strchr(err.text, '\n') || !err.code) {
		abort();
	}
	scan_init(&s, (const char *)data, size);
	if (scan_skip(&s) && scan_finish(&s) && s.p != s.end)
		abort();
	return 0;
}
