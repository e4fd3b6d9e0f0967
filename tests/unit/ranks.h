/* Ranks of a unit as processes of a test. */
#ifndef DS_TESTS_RANKS_H
#define DS_TESTS_RANKS_H

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"

enum { RANKS_SECONDS = 120 };

/* Memory that all ranks see, zeroed. */
TAP_USED static void *ranks_share(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		tap_bail("no memory to share");
	return p;
}

TAP_USED static pid_t ranks_start(size_t rank, int (*fn)(size_t rank, void *arg), void *arg)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		alarm(RANKS_SECONDS);
		_exit(fn(rank, arg));
	}
	if (pid < 0)
		tap_bail("cannot fork");
	return pid;
}

/* Runs fn(rank, arg) in a process for each rank; how many of them did not return 0. */
TAP_USED static size_t ranks_run(size_t world, int (*fn)(size_t rank, void *arg), void *arg)
{
	size_t failed = 0;
	pid_t pid[256];
	int status;

	for (size_t r = 0; r < world; r++)
		pid[r] = ranks_start(r, fn, arg);
	for (size_t r = 0; r < world; r++) {
		bool bad = waitpid(pid[r], &status, 0) != pid[r] || !WIFEXITED(status) || WEXITSTATUS(status);

		if (bad)
			tap_diag("rank %zu of %zu: status %#x", r, world, (unsigned)status);
		failed += bad;
	}
	return failed;
}

#endif
