/* Opening a warm checkpoint, and reading all of it, beside a plain read of the same bytes. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"
#include "model/checkpoint.h"
#include "model/model.h"

enum { TIMES = 15 };

static int by_value(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

static void report(const char *what, uint64_t bytes, int64_t ns)
{
	printf("%-34s %8.1f ms  %6.2f GB/s\n", what, (double)ns / 1e6, (double)bytes / (double)ns);
}

/* read(2) of every file through a buffer that stays in the cache. */
static uint64_t plain_read(const struct model *m)
{
	static char buf[1 << 18];
	uint64_t total = 0;

	for (size_t i = 0; i < m->files->file_count; i++) {
		int fd = open(m->files->files[i].path, O_RDONLY);
		ssize_t n;

		while (fd >= 0 && (n = read(fd, buf, sizeof(buf))) > 0)
			total += (uint64_t)n;
		if (fd >= 0)
			close(fd);
	}
	return total;
}

int main(int argc, char **argv)
{
	struct model *m = NULL;
	struct ds_err err;
	int64_t ns[TIMES], t;
	char hex[40];
	uint64_t bytes;

	if (argc != 2)
		return 64;
	for (int i = 0; i < TIMES; i++) {
		model_close(m);
		t = time_mono_ns();
		if (model_open(&m, argv[1], &err)) {
			fprintf(stderr, "%s\n", err.text);
			return err.code;
		}
		ns[i] = time_mono_ns() - t;
	}
	qsort(ns, TIMES, sizeof(*ns), by_value);
	bytes = plain_read(m); /* warm now, if memory allows */
	printf("%zu tensors, %llu bytes\n", m->files->count, (unsigned long long)bytes);
	printf("%-34s %8.2f ms median, %.2f least of %d\n", "open", (double)ns[TIMES / 2] / 1e6, (double)ns[0] / 1e6,
		TIMES);
	t = time_mono_ns();
	plain_read(m);
	report("plain read of the files", bytes, time_mono_ns() - t);
	t = time_mono_ns();
	if (model_verify(m, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return err.code;
	}
	report("verify", bytes, time_mono_ns() - t);
	t = time_mono_ns();
	if (model_fingerprint_full(m, hex, &err))
		return err.code;
	report("fingerprint --full", bytes, time_mono_ns() - t);
	model_close(m);
	return 0;
}
