/*
 * Units of real processes: how ranks meet, vote, lose each other and find each other again.
 */
#include "unit_ranks.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static char dir[64], unix_addr[100];
static int port = 20000;

static const char *tcp_addr(void)
{
	static char addr[40];

	snprintf(addr, sizeof(addr), "tcp:127.0.0.1:%d", port = 20000 + (port - 20000 + 7 + getpid() % 97) % 12000);
	return addr;
}

/* Lines of all ranks on stderr since the last call, in `text`. */
static size_t error_lines(char text[STDERR_BYTES])
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

static char said[STDERR_BYTES];

static size_t count(const char *text, const char *what)
{
	size_t n = 0;

	for (const char *p = strstr(text, what); p; p = strstr(p + 1, what))
		n++;
	return n;
}

/* All are open and have voted a few times. */
static bool all_run(size_t world)
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
static bool finish(size_t world)
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

/* ---- meeting ---- */

static void test_meet(const char *transport, bool tcp)
{
	static const size_t worlds[] = { 1, 2, 3, 5, 8, 16 };

	for (size_t i = 0; i < sizeof(worlds) / sizeof(*worlds); i++) {
		struct rank_start s = { .addr = tcp ? tcp_addr() : unix_addr, .transport = transport, .world = worlds[i] };
		size_t lines;
		bool good;

		board_new();
		for (s.rank = 0; s.rank < s.world; s.rank++) {
			s.delay_ns = (int64_t)(random_bits(i, s.rank) % 100000000);
			start_rank(&s);
		}
		good = all_run(s.world) && finish(s.world) && records_equal(s.world);
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
	s.addr = "tcp:0.0.0.0:0";
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
	good &= all_run(3);
	for (size_t i = 0; i < 200; i++)
		close(silent[i]);
	tap_ok(good && finish(3) && error_lines(said) == 0, "strangers at the address are closed, and nothing else happens");
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
	good = all_run(3) && finish(3);
	munmap(board, sizeof(*board));
	board = first;
	memcpy(pids, saved, sizeof(saved));
	good &= all_run(3) && finish(3) && records_equal(3);
	tap_ok(good && error_lines(said) == 0, "two units at once on one machine");
}

/* ---- losses ---- */

static const char *transport_of(bool tcp) { return tcp ? "tcp" : "shm"; }

static int compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return x < y ? -1 : x > y;
}

/* SIGKILL at random instants, one after the other, until one is left. */
static void test_kills(bool tcp, size_t runs, bool parked)
{
	int64_t times[1000];
	size_t n = 0, bad = 0;

	for (size_t run = 0; run < runs && !bad; run++) {
		size_t world = 2 + random_bits(run, 1) % 5, left = world;
		struct rank_start s = { .addr = tcp ? tcp_addr() : unix_addr, .transport = transport_of(tcp),
			.world = world };
		uint64_t alive = (1u << world) - 1;

		board_new();
		board->orders.parked = parked;
		start_ranks(&s);
		bad += !(parked ? all_see(alive, 10000) : all_run(world));
		while (left > 1 && !bad) {
			size_t victim = random_bits(run, left * 7) % world;

			if (!(alive >> victim & 1)) {
				victim = (size_t)__builtin_ctzll(alive);
			}
			usleep((useconds_t)(random_bits(run, left) % 5000));
			end_rank(victim, SIGKILL);
			alive &= ~(1u << victim);
			left--;
			bad += !all_see(alive, 10000);
			for (size_t r = 0; r < world; r++)
				if (alive >> r & 1 && n < 1000)
					times[n++] = board->seen[r].recovery_ns;
		}
		bad += !finish(world) + !records_equal(world);
		board->orders.ended = true;
		if (bad)
			tap_diag("run %zu: world %zu, alive %x", run, world, (unsigned)alive);
	}
	qsort(times, n, sizeof(*times), compare);
	tap_ok(!bad, "%zu runs of SIGKILL one after the other, %s%s: the others go on together", runs,
		transport_of(tcp), parked ? ", asleep" : "");
	if (n)
		tap_diag("recovery: median %.2f ms, worst %.2f ms of %zu", (double)times[n / 2] / 1e6,
			(double)times[n - 1] / 1e6, n);
	error_lines(said);
}

static void test_messages(void)
{
	struct rank_start s = { .addr = unix_addr, .world = 3 };
	bool good;
	size_t lines;

	board_new();
	start_ranks(&s);
	good = all_run(3);
	end_rank(2, SIGKILL);
	good &= all_see(3, 5000);
	lines = error_lines(said);
	tap_ok(good && lines == 2 && count(said, "unit: rank 2 has gone; 2 ranks go on, epoch 2, ") == 2,
		"a loss is one line of each that is left");
	if (lines != 2)
		tap_diag("%s", said);
	tap_ok(board->seen[0].losses == 1 && board->seen[1].losses == 1, "and counted");
	s.rank = 2;
	start_rank(&s);
	good = all_see(7, 5000);
	lines = error_lines(said);
	tap_ok(good && lines == 2 && count(said, "unit: rank 2 has come; 3 ranks go on, epoch 3, ") == 2,
		"one that was started again joins: a line of each that was there");
	if (!good || lines != 2)
		tap_diag("%zu: %s", lines, said);
	tap_ok(finish(3) && records_equal(3) && error_lines(said) == 0, "and all end");
}

/* ---- coming back ---- */

/* Ranks are killed and started again, some stopped for longer than the timeout and continued, at random. */
static void test_turmoil(bool tcp, size_t world, size_t rounds)
{
	struct rank_start s = { .addr = tcp ? tcp_addr() : unix_addr, .transport = transport_of(tcp), .world = world,
		.peer_timeout_ns = 150000000 };
	uint64_t all = (1u << world) - 1;
	size_t bad = 0;

	board_new();
	start_ranks(&s);
	bad += !all_run(world);
	for (size_t i = 0; i < rounds && !bad; i++) {
		size_t victim = random_bits(4, i) % world, other = (victim + 1 + random_bits(5, i) % (world - 1)) % world;

		s.rank = victim;
		if (random_bits(6, i) % 3 == 0) {
			kill(pids[victim], SIGSTOP);
			bad += !all_see(all & ~(1u << victim), 10000);
			kill(pids[victim], SIGCONT);
		} else if (random_bits(6, i) % 3 == 1) {
			end_rank(victim, SIGKILL);
			usleep((useconds_t)(random_bits(7, i) % 3000));
			start_rank(&s);
		} else if (world > 2) {
			end_rank(victim, SIGKILL);
			end_rank(other, SIGKILL);
			start_rank(&s);
			s.rank = other;
			start_rank(&s);
		}
		bad += !all_see(all, 20000);
		if (bad)
			tap_diag("round %zu: ranks %zu, %zu", i, victim, other);
	}
	bad += !finish(world) + !records_equal(world);
	tap_ok(!bad, "%zu rounds of SIGKILL, SIGSTOP, SIGCONT and new starts of %zu ranks, %s: all join again",
		rounds, world, transport_of(tcp));
	if (bad && error_lines(said))
		tap_diag("%s", said);
	error_lines(said);
}

static void test_leave(void)
{
	struct rank_start s = { .addr = unix_addr, .world = 4 };
	bool good;
	size_t lines;

	board_new();
	start_ranks(&s);
	good = all_run(4);
	board->orders.leave = 1; /* it holds the address, or not */
	good &= all_see(14, 5000) && wait_for(0, ENDED, 5000);
	end_rank(0, 0);
	board->orders.leave = 0;
	lines = error_lines(said);
	tap_ok(good && lines == 3 && count(said, "unit: rank 0 has left; 3 ranks go on, epoch 2, ") == 3 &&
		board->seen[1].losses == 0, "a rank leaves: it is not lost");
	if (lines != 3)
		tap_diag("%s", said);
	start_rank(&s);
	good = all_see(15, 5000);
	tap_ok(good && finish(4) && records_equal(4), "and may come again");
	error_lines(said);
}

/* ---- plans ---- */

static bool all_have_plan(uint64_t members, uint64_t least, int64_t ms)
{
	int64_t until = time_mono_ns() + ms * 1000000;
	bool same = false;

	while (!same && time_mono_ns() < until) {
		uint64_t id = 0;

		same = true;
		for (size_t r = 0; r < RANKS; r++) {
			if (!(members >> r & 1))
				continue;
			same &= board->seen[r].plan >= least && (!id || board->seen[r].plan == id) &&
				board->seen[r].plan_bytes;
			id = board->seen[r].plan;
		}
		if (!same)
			usleep(500);
	}
	return same;
}

static uint64_t greatest_plan(size_t world)
{
	uint64_t most = 0;

	for (size_t r = 0; r < world; r++)
		if (board->seen[r].plan > most)
			most = board->seen[r].plan;
	return most;
}

static void test_plans(bool tcp, bool parked)
{
	struct rank_start s = { .addr = tcp ? tcp_addr() : unix_addr, .transport = transport_of(tcp), .world = 4 };
	bool good;
	uint64_t plan;

	board_new();
	board->orders.parked = parked;
	start_ranks(&s);
	good = parked ? all_see(15, 5000) : all_run(4);
	board->orders.offer[2] = 40;
	tap_ok(good && all_have_plan(15, 1, 5000), "a plan of one rank takes effect on all, %s%s", transport_of(tcp),
		parked ? ", asleep" : "");
	plan = greatest_plan(4);
	board->orders.offer[1] = 18;
	board->orders.offer[3] = 22;
	good = all_have_plan(15, plan + 5, 5000);
	tap_ok(good, "of two at once all come to the later one");
	plan = greatest_plan(4);
	end_rank(0, SIGKILL);
	good = all_see(14, 5000);
	start_rank(&s);
	tap_ok(good && all_see(15, 5000) && all_have_plan(15, plan, 5000), "a newcomer gets the plan that is in effect");
	plan = greatest_plan(4);
	end_rank(3, SIGKILL);
	good = all_see(7, 5000);
	board->orders.offer[3] = 30;
	s.rank = 3;
	start_rank(&s);
	tap_ok(good && all_see(15, 5000) && all_have_plan(15, plan + 1, 5000), "a newcomer may offer one");
	good = true;
	for (size_t i = 0; i < 12 && good; i++) {
		plan = greatest_plan(4);
		board->orders.offer[i % 4] = 100 + 2 * i;
		usleep((useconds_t)(random_bits(9, i) % 4000));
		end_rank((i + i / 4) % 4, SIGKILL);
		s.rank = (i + i / 4) % 4;
		good = all_see(15 & ~(1u << s.rank), 5000);
		if ((i + i / 4) % 4 != i % 4)
			good &= all_have_plan(15 & ~(1u << s.rank), plan + 1, 5000);
		start_rank(&s);
		good &= all_see(15, 5000) && all_have_plan(15, plan, 5000);
		if (!good)
			tap_diag("round %zu", i);
	}
	tap_ok(good, "plans while ranks die, the one that offers or another");
	good = finish(4) && records_equal(4);
	tap_ok(good, "every vote was under the same plan on all");
	error_lines(said);
}

static void test_refused_plan(void)
{
	struct rank_start s = { .addr = unix_addr, .world = 3 };
	bool good;

	board_new();
	for (s.rank = 0; s.rank < 3; s.rank++) {
		s.refuses = s.rank == 1;
		start_rank(&s);
	}
	good = all_run(3);
	board->orders.offer[0] = 7;
	usleep(200000);
	good &= greatest_plan(3) == 0;
	tap_ok(good && error_lines(said) == 1 && count(said, "is refused: odd") == 1,
		"a plan that one rank refuses takes effect on none");
	board->orders.offer[0] = 8;
	tap_ok(all_have_plan(7, 1, 5000) && finish(3), "and the next one does");
	error_lines(said);
}

/* ---- asleep ---- */

static uint64_t cpu_of_all(size_t world)
{
	uint64_t sum = 0;

	for (size_t r = 0; r < world; r++) {
		char path[60], line[500];
		unsigned long user = 0, sys = 0;
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%d/stat", pids[r]);
		f = fopen(path, "r");
		if (f && fgets(line, sizeof(line), f) && sscanf(strrchr(line, ')'),
			") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &sys) == 2)
			sum += user + sys;
		if (f)
			fclose(f);
	}
	return sum;
}

static void test_asleep(bool tcp)
{
	struct rank_start s = { .addr = tcp ? tcp_addr() : unix_addr, .transport = transport_of(tcp), .world = 4 };
	uint64_t votes = 0, before, after = 0;
	bool good;

	board_new();
	board->orders.parked = true;
	start_ranks(&s);
	good = all_see(15, 5000);
	usleep(100000);
	for (size_t r = 0; r < 4; r++)
		votes += board->seen[r].votes;
	before = cpu_of_all(4);
	usleep(1000000);
	for (size_t r = 0; r < 4; r++)
		after += board->seen[r].votes;
	tap_ok(good && after == votes && cpu_of_all(4) - before <= 2, "four sleeping ranks do nothing, %s",
		transport_of(tcp));
	end_rank(3, SIGKILL);
	good = all_see(7, 2000);
	s.rank = 3;
	start_rank(&s);
	tap_ok(good && all_see(15, 2000), "a loss and a newcomer wake them");
	usleep(100000);
	good = true;
	for (size_t r = 0; r < 4; r++)
		good &= wait_for(r, PARKED, 1000) && (r == 3 || board->seen[r].bells > 0);
	tap_ok(good, "and they sleep on");
	tap_ok(finish(4) && records_equal(4), "one that wakes by itself takes the others along");
	error_lines(said);
}

/* Hundreds of epochs: nothing grows. */
static void test_growth(bool tcp, size_t rounds)
{
	struct rank_start s = { .addr = tcp ? tcp_addr() : unix_addr, .transport = transport_of(tcp), .world = 3 };
	int64_t fds = 0, kb = 0;
	bool good;

	board_new();
	board->orders.count = true;
	start_ranks(&s);
	good = all_run(3);
	s.rank = 2;
	for (size_t i = 0; i < rounds && good; i++) {
		end_rank(2, SIGKILL);
		good = all_see(3, 5000);
		start_rank(&s);
		good &= all_see(7, 5000);
		if (i == rounds / 4) {
			usleep(50000);
			fds = board->seen[0].fds;
			kb = board->seen[0].kb;
		}
	}
	usleep(50000);
	tap_ok(good && board->seen[0].fds <= fds && (tap_slow() || board->seen[0].kb <= kb + 1000), "%d epochs, %s: %d descriptors, %d kB "
		"more than after a quarter of them", (int)board->seen[0].epoch, transport_of(tcp),
		(int)(board->seen[0].fds - fds), (int)(board->seen[0].kb - kb));
	finish(3);
	error_lines(said);
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	snprintf(dir, sizeof(dir), "/tmp/ds-test-unit-%d", getpid());
	mkdir(dir, 0700);
	snprintf(unix_addr, sizeof(unix_addr), "unix:%s/u", dir);
	snprintf(errors_at, sizeof(errors_at), "%s/errors", dir);
	test_meet("shm", false);
	test_meet("tcp", true);
	test_meet("tcp", false);
	test_refusals();
	test_double();
	test_strangers();
	test_two_units();
	test_messages();
	test_kills(false, 10, false);
	test_kills(true, 10, false);
	test_kills(false, 5, true);
	for (size_t world = 2; world <= 5; world += 1 + world % 2) {
		test_turmoil(false, world, 15);
		test_turmoil(true, world, 15);
	}
	test_leave();
	for (int tcp = 0; tcp < 2; tcp++) {
		test_plans(tcp, false);
		test_plans(tcp, true);
		test_asleep(tcp);
		test_growth(tcp, 100);
	}
	test_refused_plan();
	unlink(errors_at);
	rmdir(dir);
	return tap_done();
}
