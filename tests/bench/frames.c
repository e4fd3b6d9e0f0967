/*
 * Frames of 4 MiB from one process to another through a pipe of 1 MiB, beside plain write and read of the same bytes:
 * GB/s and CPU seconds a GB (both processes together).  The goal is 0.8 of the plain rate.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "frame/frame.h"
#include "net/addr.h"

enum { PAYLOAD = 4 << 20, ROUNDS = 5 };

static uint64_t total = (uint64_t)4 << 30;

enum way { PLAIN, FRAMES, FRAMES_HASH, FRAMES_CHECKED, WAYS };
static const char *const names[WAYS] = { "plain write and read", "frames", "frames, hashed",
	"frames, hashed and checked" };

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void write_plain(int fd, const uint8_t *p)
{
	for (uint64_t n = 0; n < total; n += PAYLOAD)
		for (size_t at = 0; at < PAYLOAD;) {
			ssize_t k = write(fd, p + at, PAYLOAD - at);

			if (k <= 0)
				die("write");
			at += (size_t)k;
		}
}

static void read_plain(int fd, uint8_t *p)
{
	for (uint64_t n = 0; n < total; n += PAYLOAD)
		for (size_t at = 0; at < PAYLOAD;) {
			ssize_t k = read(fd, p + at, PAYLOAD - at);

			if (k <= 0)
				die("read");
			at += (size_t)k;
		}
}

static void write_frames(int fd, uint8_t *p, bool hash)
{
	const uint64_t shape[3] = { 61, 64, PAYLOAD / 2 / 61 / 64 };
	struct iovec iov = { p, PAYLOAD };
	struct meta_builder *b = meta_new();
	struct frame_writer *w;
	struct ds_err err;
	int rc = frame_writer_new(&w, fd, "pipe", &err);

	for (uint64_t n = 0; n < total && !rc; n += PAYLOAD) {
		meta_reset(b);
		meta_put_uint(b, "first", n / PAYLOAD * 64);
		meta_put_uint(b, "count", 64);
		meta_put_tensor(b, "kv", DT_BF16, "layer,token,dim", shape, 3, 0, NULL);
		rc = frame_write(w, FRAME_KV, 0, 1, b, &iov, 1, hash, &err);
	}
	if (!rc)
		rc = frame_write_end(w, &err);
	if (rc)
		die(err.text);
	frame_writer_free(w);
	meta_free(b);
}

static void read_frames(int fd, uint8_t *p, bool check)
{
	struct frame_reader *r;
	enum frame_event ev = FRAME_AGAIN;
	struct frame *f;
	struct ds_err err;
	int rc = frame_reader_new(&r, fd, "pipe", 0, &err);

	while (!rc && ev != FRAME_EOF) {
		rc = frame_reader_next(r, &ev, &f, &err);
		if (!rc && ev == FRAME_HEAD && f->data_len == PAYLOAD)
			frame_reader_into(r, p);
		if (!rc && ev == FRAME_BODY && check)
			rc = frame_check_payload(f, &err);
	}
	if (rc)
		die(err.text);
	frame_reader_free(r);
}

static double cpu_of(int who)
{
	struct rusage u;

	getrusage(who, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
		1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void once(enum way way, uint8_t *p, double *seconds, double *cpu)
{
	double cpu0 = cpu_of(RUSAGE_SELF) + cpu_of(RUSAGE_CHILDREN);
	int64_t start = time_mono_ns();
	int fds[2];
	pid_t pid;

	if (pipe(fds))
		die("pipe");
	fd_grow_pipe(fds[1]);
	pid = fork();
	if (pid == 0) {
		close(fds[0]);
		if (way == PLAIN)
			write_plain(fds[1], p);
		else
			write_frames(fds[1], p, way >= FRAMES_HASH);
		_exit(0);
	}
	close(fds[1]);
	if (way == PLAIN)
		read_plain(fds[0], p);
	else
		read_frames(fds[0], p, way == FRAMES_CHECKED);
	close(fds[0]);
	waitpid(pid, NULL, 0);
	*seconds = (double)(time_mono_ns() - start) * 1e-9;
	*cpu = cpu_of(RUSAGE_SELF) + cpu_of(RUSAGE_CHILDREN) - cpu0;
}

/* argv: a model's directory, not used; MB to move each time. */
int main(int argc, char **argv)
{
	uint8_t *p = mem_aligned(PAYLOAD);
	double best[WAYS], cpu[WAYS], gb;

	if (!p)
		die("memory");
	if (argc > 2)
		total = strtoull(argv[2], NULL, 10) << 20;
	gb = (double)total * 1e-9;
	for (size_t i = 0; i < PAYLOAD; i++)
		p[i] = (uint8_t)(i * 2654435761u >> 13);
	for (int way = 0; way < WAYS; way++)
		best[way] = 1e9;
	for (int round = 0; round < ROUNDS; round++) /* in turn, so that a noisy minute hits all alike */
		for (int way = 0; way < WAYS; way++) {
			double s, c;

			once((enum way)way, p, &s, &c);
			if (s < best[way]) {
				best[way] = s;
				cpu[way] = c;
			}
		}
	printf("%-28s %8s %12s %8s\n", "4 MiB through a 1 MiB pipe", "GB/s", "CPU s/GB", "ratio");
	for (int way = 0; way < WAYS; way++)
		printf("%-28s %8.2f %12.3f %8.2f\n", names[way], gb / best[way], cpu[way] / gb,
			best[PLAIN] / best[way]);
	free(p);
	return 0;
}
