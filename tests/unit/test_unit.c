/*
 * Units of real processes: how ranks meet, and who is refused.
 */
#include "unit_tests.h"

#include <sys/socket.h>
#include <sys/un.h>

static void test_meet(const char *transport, bool tcp)
{
	static const size_t worlds[] = { 1, 2, 3, 5, 8, 16 };

	for (size_t i = 0; i < sizeof(worlds) / sizeof(*worlds); i++) {
		struct rank_start s = { .addr = tcp ? tcp_addr() : unix_addr, .transport = transport,
			.world = worlds[i] };
		size_t lines;
		bool good;

		board_new();
		for (s.rank = 0; s.rank < s.world; s.rank++) {
			s.delay_ns = (int64_t)(random_bits(i, s.rank) % 100000000);
			start_rank(&s);
		}
		good = ranks_vote(s.world) && ranks_finish(s.world) && records_equal(s.world);
		for (size_t r = 0; r < s.world; r++)
			good &= board->seen[r].over && board->seen[r].epoch == 1 && board->seen[r].losses == 0;
		lines = error_lines(said);
		tap_ok(good && lines == 0, "%zu ranks meet at a %s address in any order, vote and end together (%s)",
			s.world, tcp ? "tcp" : "unix", transport);
		if (lines)
			tap_diag("%s", said);
	}
	tap_ok(access(unix_addr + 5, F_OK) != 0, "no socket is left behind");
}

/* Every rank ends with this code and says this, once. */
static void all_refused(size_t world, uint64_t who, int code, const char *text, const char *what)
{
	bool good = reap(world, 10000);
	size_t n = 0, lines = error_lines(said);

	for (size_t r = 0; r < world; r++) {
		if (!(who >> r & 1))
			continue;
		n++;
		if (board->seen[r].state != REFUSED || board->seen[r].code != code ||
			!strstr(board->seen[r].text, text)) {
			tap_diag("rank %zu: state %d, code %d, '%s', not '%s'", r, (int)board->seen[r].state,
				(int)board->seen[r].code, board->seen[r].text, text);
			good = false;
		}
	}
	tap_ok(good && lines == n, "%s: %s", what, text);
	if (lines != n)
		tap_diag("%zu lines: %s", lines, said);
}

static void test_refusals(void)
{
	struct rank_start s = { .addr = unix_addr, .world = 4, .unit_timeout_ns = 400000000 };

	board_new();
	for (s.rank = 0; s.rank < 4; s.rank += 2)
		start_rank(&s);
	all_refused(4, 5, DS_UNAVAILABLE, "ranks 1 and 3 of 4 did not come within 0.4 s", "ranks are missing");

	board_new();
	s.unit_timeout_ns = 0;
	for (s.rank = 0; s.rank < 4; s.rank++) {
		s.model = s.rank == 2 ? "v3" : "v2";
		s.delay_ns = s.rank == 2 ? 50000000 : 0;
		if (s.rank != 3)
			start_rank(&s);
	}
	all_refused(4, 7, DS_PROTO, "ranks differ in model: rank ", "another model");
	tap_ok(count(said, "has 'v2'") == 3 && count(said, "rank 2 has 'v3'") == 3, "with both values and the rank");

	board_new();
	s = (struct rank_start){ .addr = unix_addr, .world = 4 };
	start_rank(&s);
	s.rank = 1, s.world = 3, s.delay_ns = 50000000;
	start_rank(&s);
	all_refused(2, 3, DS_CONFIG, "rank 0 was started for 4 ranks, rank 1 for 3", "another world");

	board_new();
	s = (struct rank_start){ .addr = unix_addr, .world = 4, .transport = "shm" };
	start_rank(&s);
	s.rank = 1, s.transport = "tcp", s.delay_ns = 50000000;
	start_rank(&s);
	all_refused(2, 3, DS_PROTO, "ranks differ in transport: rank 0 has 'shm', rank 1 has 'tcp'",
		"another transport");

	board_new();
	s = (struct rank_start){ .addr = unix_addr, .world = 4 };
	start_rank(&s);
	s.rank = 1, s.bytes = 8192, s.delay_ns = 50000000;
	start_rank(&s);
	all_refused(2, 3, DS_PROTO, "ranks differ in buffer: rank 0 has '4096 + 4096 bytes', rank 1 has '8192 + 4096 "
		"bytes'", "another buffer");

	s = (struct rank_start){ .addr = "unix:/nonexistent/x", .world = 2 };
	board_new();
	start_rank(&s);
	all_refused(1, 1, DS_CONFIG, "cannot listen on 'unix:/nonexistent/x'", "no such directory");
	s.addr = "tcp:0.0.0.0:4711";
	board_new();
	start_rank(&s);
	all_refused(1, 1, DS_CONFIG, "is reachable from other machines", "not only this machine");
}

/* Two processes of one number: written down apart, since they share a place on the board. */
static void test_double(void)
{
	struct rank_start s = { .addr = unix_addr, .world = 3 };
	struct board *first;
	pid_t pid;
	bool good;

	board_new();
	first = board;
	start_rank(&s);
	s.rank = 1;
	start_rank(&s);
	pid = pids[1];
	board = NULL;
	board_new();
	s.delay_ns = 50000000;
	start_rank(&s);
	waitpid(pid, NULL, 0);
	good = reap(3, 10000) && board->seen[1].code == DS_CONFIG && first->seen[1].code == DS_CONFIG &&
		first->seen[0].code == DS_CONFIG;
	tap_ok(good && error_lines(said) == 3 && count(said, "two ranks have the number 1") == 3,
		"two ranks of one number are refused, one line each");
	munmap(first, sizeof(*first));
}

static int connect_unix(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	for (int i = 0; i < 1000 && connect(fd, (struct sockaddr *)&a, sizeof(a)); i++)
		usleep(1000);
	return fd;
}

static void test_strangers(void)
{
	struct rank_start s = { .addr = unix_addr, .world = 3 };
	char junk[4096], c;
	int fd, silent[200];
	bool good;

	for (size_t i = 0; i < sizeof(junk); i++)
		junk[i] = (char)random_bits(1, i);
	board_new();
	start_rank(&s);
	for (size_t i = 0; i < 200; i++)
		silent[i] = connect_unix(unix_addr + 5);
	for (size_t n = 1; n <= sizeof(junk); n *= 2) {
		fd = connect_unix(unix_addr + 5);
		if (n == 64) /* begins as it should */
			memcpy(junk, (uint32_t[]){ 0x31555344, 1, 1 << 30, 0 }, 16);
		good = write(fd, junk, n) == (ssize_t)n;
		shutdown(fd, SHUT_WR);
		good &= read(fd, &c, 1) <= 0;
		close(fd);
	}
	s.rank = 1;
	start_rank(&s);
	s.rank = 2;
	start_rank(&s);
	good &= ranks_vote(3);
	for (size_t i = 0; i < 200; i++)
		close(silent[i]);
	tap_ok(good && ranks_finish(3) && error_lines(said) == 0,
		"strangers at the address are closed, and nothing else happens");
}

static void test_two_units(void)
{
	struct rank_start s = { .addr = unix_addr, .world = 3 };
	struct board *first;
	char other[120];
	pid_t saved[3];
	bool good;

	snprintf(other, sizeof(other), "unix:%s/other", dir);
	board_new();
	first = board;
	start_ranks(&s);
	memcpy(saved, pids, sizeof(saved));
	board = NULL;
	board_new();
	s.addr = other;
	start_ranks(&s);
	good = ranks_vote(3) && ranks_finish(3);
	munmap(board, sizeof(*board));
	board = first;
	memcpy(pids, saved, sizeof(saved));
	good &= ranks_vote(3) && ranks_finish(3) && records_equal(3);
	tap_ok(good && error_lines(said) == 0, "two units at once on one machine");
}

int main(void)
{
	tests_begin();
	test_meet("shm", false);
	test_meet("tcp", true);
	test_meet("tcp", false);
	test_refusals();
	test_double();
	test_strangers();
	test_two_units();
	return tests_done();
}
