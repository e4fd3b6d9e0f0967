/* What tests of units have in common, beyond the processes. */
#ifndef DS_TESTS_UNIT_TESTS_H
#define DS_TESTS_UNIT_TESTS_H

#include "unit_ranks.h"

static char dir[64], unix_addr[100], said[STDERR_BYTES];

TAP_USED static const char *transport_of(bool tcp) { return tcp ? "tcp" : "shm"; }

TAP_USED static const char *tcp_addr(void)
{
	static char addr[40];
	static int port;

	snprintf(addr, sizeof(addr), "tcp:127.0.0.1:%d", 20000 + (port += 7 + getpid() % 97) % 12000);
	return addr;
}

/* Lines of all ranks on stderr since the last call, in `text`. */
TAP_USED static size_t error_lines(char text[STDERR_BYTES])
{
	int fd = open(errors_at, O_RDONLY);
	ssize_t n = fd < 0 ? 0 : read(fd, text, STDERR_BYTES - 1);
	size_t lines = 0;

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	for (char *p = text; *p; p++)
		lines += *p == '\n';
	if (truncate(errors_at, 0)) /* ranks that live write on */
		return lines;
	return lines;
}

TAP_USED static size_t count(const char *text, const char *what)
{
	size_t n = 0;

	for (const char *p = strstr(text, what); p; p = strstr(p + 1, what))
		n++;
	return n;
}

/* All are open and have voted a few times. */
TAP_USED static bool ranks_vote(size_t world)
{
	bool good = true;

	for (size_t r = 0; r < world; r++)
		good &= wait_for(r, RUNNING, 20000);
	for (int i = 0; i < 20000 && good; i++) {
		size_t n = 0;

		for (size_t r = 0; r < world; r++)
			n += board->seen[r].votes >= 3;
		if (n == world)
			return true;
		usleep(1000);
	}
	return false;
}

/* The inputs end, and so does the unit. */
TAP_USED static bool ranks_finish(size_t world)
{
	bool good;

	board->orders.ended = true;
	good = reap(world, 20000);
	for (size_t r = 0; r < world; r++)
		if (board->seen[r].code) {
			tap_diag("rank %zu: %d %s", r, (int)board->seen[r].code, board->seen[r].text);
			good = false;
		}
	return good;
}

/* Lines of stderr are kept apart for the whole program. */
TAP_USED static void tests_begin(void)
{
	signal(SIGPIPE, SIG_IGN);
	snprintf(dir, sizeof(dir), "/tmp/ds-test-unit-%d", getpid());
	mkdir(dir, 0700);
	snprintf(unix_addr, sizeof(unix_addr), "unix:%s/u", dir);
	snprintf(errors_at, sizeof(errors_at), "%s/errors", dir);
}

TAP_USED static int tests_done(void)
{
	unlink(errors_at);
	rmdir(dir);
	return tap_done();
}

#endif
