/*
 * Units of real processes: ranks that die, stop, leave and come back.
 */
#include "unit_tests.h"

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
		bad += !(parked ? all_see(alive, 10000) : ranks_vote(world));
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
		bad += !ranks_finish(world) + !records_equal(world);
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
	good = ranks_vote(3);
	end_rank(2, SIGKILL);
	good &= all_see(3, 5000);
	lines = error_lines(said);
	tap_ok(good && lines == 2 && count(said, "unit: rank 2 has gone") == 2 &&
		count(said, "; 2 ranks go on, epoch 2, ") == 2 &&
		count(said, "unit: rank 2 has gone (connection closed); ") > 0,
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
	tap_ok(ranks_finish(3) && records_equal(3) && error_lines(said) == 0, "and all end");
}

/* Ranks are killed and started again, some stopped for longer than the timeout and continued, at random. */
static void test_turmoil(bool tcp, size_t world, size_t rounds)
{
	struct rank_start s = { .addr = tcp ? tcp_addr() : unix_addr, .transport = transport_of(tcp), .world = world,
		.peer_timeout_ns = 150000000 };
	uint64_t all = (1u << world) - 1;
	size_t bad = 0;

	board_new();
	start_ranks(&s);
	bad += !ranks_vote(world);
	for (size_t i = 0; i < rounds && !bad; i++) {
		size_t victim = random_bits(4, i) % world;
		size_t other = (victim + 1 + random_bits(5, i) % (world - 1)) % world;

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
	bad += !ranks_finish(world) + !records_equal(world);
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
	good = ranks_vote(4);
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
	tap_ok(good && ranks_finish(4) && records_equal(4), "and may come again");
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
	good = ranks_vote(3);
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
	fds = board->seen[0].fds - fds;
	kb = board->seen[0].kb - kb;
	tap_ok(good && fds <= 0 && (tap_slow() || kb <= 1000),
		"%d epochs, %s: %d descriptors, %d kB more than after a quarter of them", (int)board->seen[0].epoch,
		transport_of(tcp), (int)fds, (int)kb);
	ranks_finish(3);
	error_lines(said);
}

int main(void)
{
	tests_begin();
	test_messages();
	test_kills(false, 10, false);
	test_kills(true, 10, false);
	test_kills(false, 5, true);
	for (size_t world = 2; world <= 5; world += 1 + world % 2) {
		test_turmoil(false, world, 15);
		test_turmoil(true, world, 15);
	}
	test_leave();
	test_growth(false, 100);
	test_growth(true, 100);
	return tests_done();
}
