/*
 * For measurements of several processes beside each other: servers that end with the bench, a directory that goes with
 * it, CPU time of whoever took part, rounds in which each way has its turn so that a noisy minute hits all alike.
 */
#ifndef DS_TESTS_BENCH_BESIDE_H
#define DS_TESTS_BENCH_BESIDE_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"

#define BESIDE_USED __attribute__((unused))

static char scratch[200]; /* the directory; short enough for sockets in it */

BESIDE_USED __attribute__((format(printf, 1, 2), noreturn)) static void die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("bench: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(1);
}

/* scratch/name, as printf has it; memory of this function's, four at a time. */
BESIDE_USED __attribute__((format(printf, 1, 2))) static const char *in_scratch(const char *fmt, ...)
{
	static char paths[4][400];
	static unsigned turn;
	char *p = paths[turn++ % 4];
	int n = snprintf(p, sizeof(paths[0]), "%s/", scratch);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(p + n, sizeof(paths[0]) - (size_t)n, fmt, ap);
	va_end(ap);
	return p;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	return remove(path);
}

BESIDE_USED static void remove_tree(const char *path)
{
	nftw(path, remove_one, 32, FTW_DEPTH | FTW_PHYS);
}

static void scratch_end(void)
{
	remove_tree(scratch);
}

/* A directory on $TMPDIR, or beside what was built: false where there is no room for so much. */
BESIDE_USED static bool scratch_begin(uint64_t bytes)
{
	const char *tmp = getenv("TMPDIR"), *build = getenv("DS_BUILD");
	struct statvfs fs;

	if (tmp) {
		snprintf(scratch, sizeof(scratch), "%s/ds-bench-XXXXXX", tmp);
	} else {
		snprintf(scratch, sizeof(scratch), "%s/bench-data", build ? build : "build");
		mkdir(scratch, 0777);
		strcat(scratch, "/run-XXXXXX");
	}
	if (!mkdtemp(scratch))
		die("cannot make '%s': %s", scratch, strerror(errno));
	atexit(scratch_end);
	return statvfs(scratch, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize > bytes + bytes / 4;
}

/* ---- servers ---- */

/* A process of ours that ends when this one does; what it prints goes to scratch/log. */
BESIDE_USED static pid_t spawn(const char *const *argv)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		int log = open(in_scratch("log"), O_WRONLY | O_CREAT | O_APPEND, 0600);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(log, 1);
		dup2(log, 2);
		execvp(argv[0], (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	if (pid < 0)
		die("cannot fork: %s", strerror(errno));
	return pid;
}

BESIDE_USED static void stop(pid_t *pid)
{
	if (*pid <= 0)
		return;
	kill(*pid, SIGTERM);
	waitpid(*pid, NULL, 0);
	*pid = 0;
}

/* A connection to a unix socket, for which it waits ten seconds; -1: nobody came. */
BESIDE_USED static int connect_unix(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (strlen(path) >= sizeof(a.sun_path))
		die("'%s' is too long for a socket", path);
	strcpy(a.sun_path, path);
	for (int i = 0; i < 1000; i++) {
		if (connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
			return fd;
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
	close(fd);
	return -1;
}

/* Seconds of CPU that a process has had, 0: this one. */
BESIDE_USED static double cpu_seconds(pid_t pid)
{
	struct timespec t = { 0 };
	clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;

	if (pid < 0 || (pid && clock_getcpuclockid(pid, &clock)) || clock_gettime(clock, &t))
		return 0;
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- figures ---- */

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Sorts. */
BESIDE_USED static double median(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), by_size);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

#endif
