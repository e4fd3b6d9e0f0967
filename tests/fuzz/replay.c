/*
 * Runs a fuzzer's function over files (its seeds and what it once found) and prints TAP: the finds stay found, without
 * clang.
 */
#include <dirent.h>
#include <stdint.h>

#include "tests/unit/tap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void replay_file(const char *path)
{
	static uint8_t data[1 << 20];
	FILE *f = fopen(path, "rb");
	uint8_t *copy;
	size_t n;

	if (!f) {
		tap_ok(false, "%s can be read", path);
		return;
	}
	n = fread(data, 1, sizeof(data), f);
	fclose(f);
	copy = malloc(n ? n : 1); /* of its own size, so that a sanitizer sees a read beyond it */
	if (!copy)
		tap_bail("no memory");
	memcpy(copy, data, n);
	LLVMFuzzerTestOneInput(copy, n);
	free(copy);
	tap_ok(true, "%s", path);
}

static void replay_dir(const char *dir)
{
	struct dirent **names;
	char path[1000];
	int n = scandir(dir, &names, NULL, alphasort);

	for (int i = 0; i < n; i++) {
		if (names[i]->d_name[0] != '.') {
			snprintf(path, sizeof(path), "%s/%s", dir, names[i]->d_name);
			replay_file(path);
		}
		free(names[i]);
	}
	if (n >= 0)
		free(names);
}

int main(int argc, char **argv)
{
	LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
	tap_ok(true, "nothing at all");
	for (int i = 1; i < argc; i++)
		replay_dir(argv[i]);
	return tap_done();
}
