/*
 * Units of real processes: plans, and ranks that sleep.
 */
#include "unit_tests.h"

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

static uint64_t greatest_ready(size_t world)
{
	uint64_t most = 0;

	for (size_t r = 0; r < world; r++)
		if (board->seen[r].prepared > most)
			most = board->seen[r].prepared;
	return most;
}

/* What one of these has ready comes into effect on all, whoever offered it. */
static bool all_come_to(uint64_t members, int64_t ms)
{
	int64_t until = time_mono_ns() + ms * 1000000;
	bool same = false;

	while (!same && time_mono_ns() < until) {
		uint64_t most = 0;

		for (size_t r = 0; r < RANKS; r++)
			if (members >> r & 1 && board->seen[r].prepared > most)
				most = board->seen[r].prepared;
		same = true;
		for (size_t r = 0; r < RANKS; r++)
			same &= !(members >> r & 1) || board->seen[r].plan == most;
		if (!same)
			usleep(500);
	}
	return same;
}

static void test_plans(bool tcp, bool parked)
{
	struct rank_start s = { .addr = tcp ? tcp_addr() : unix_addr, .transport = transport_of(tcp), .world = 4 };
	bool good;
	uint64_t plan;

	board_new();
	board->orders.parked = parked;
	start_ranks(&s);
	good = parked ? all_see(15, 5000) : ranks_vote(4);
	board->orders.offer[2] = 40;
	tap_ok(good && all_have_plan(15, 1, 5000), "a plan of one rank takes effect on all, %s%s", transport_of(tcp),
		parked ? ", asleep" : "");
	plan = greatest_plan(4);
	board->orders.offer[1] = 18;
	board->orders.offer[3] = 22;
	good = all_have_plan(15, plan + 1, 5000);
	for (int i = 0; i < 5000 && !(good && all_have_plan(15, greatest_ready(4), 1)); i++)
		usleep(1000);
	good &= all_have_plan(15, greatest_ready(4), 1) && greatest_ready(4) > plan;
	tap_ok(good, "of two at once all come to the later one");
	plan = greatest_plan(4);
	end_rank(0, SIGKILL);
	good = all_see(14, 5000);
	start_rank(&s);
	tap_ok(good && all_see(15, 5000) && all_have_plan(15, plan, 5000),
		"a newcomer gets the plan that is in effect");
	plan = greatest_plan(4);
	end_rank(3, SIGKILL);
	good = all_see(7, 5000);
	board->orders.offer[3] = 30;
	s.rank = 3;
	start_rank(&s);
	tap_ok(good && all_see(15, 5000) && all_have_plan(15, plan + 1, 5000), "a newcomer may offer one");
	good = true;
	for (size_t i = 0; i < 16 && good; i++) {
		plan = greatest_plan(4);
		board->orders.offer[i % 4] = 100 + 2 * i;
		usleep((useconds_t)(random_bits(9, i) % 4000));
		end_rank((i + i / 4) % 4, SIGKILL);
		s.rank = (i + i / 4) % 4;
		good = all_see(15 & ~(1u << s.rank), 5000);
		good &= all_come_to(15 & ~(1u << s.rank), 5000);
		if ((i + i / 4) % 4 != i % 4)
			good &= all_have_plan(15 & ~(1u << s.rank), plan + 1, 5000);
		start_rank(&s);
		good &= all_see(15, 5000) && all_have_plan(15, plan, 5000);
		if (!good)
			tap_diag("round %zu", i);
	}
	tap_ok(good, "plans while ranks die, the one that offers or another");
	good = ranks_finish(4) && records_equal(4);
	tap_ok(good, "every vote was under the same plan on all");
	error_lines(said);
}

/* Asleep, where nothing but these two wakes anybody. */
static void test_both_at_once(bool tcp)
{
	struct rank_start s = { .addr = tcp ? tcp_addr() : unix_addr, .transport = transport_of(tcp), .world = 3 };
	bool good;

	board_new();
	board->orders.parked = true;
	start_ranks(&s);
	good = all_see(7, 5000);
	s.rank = 2;
	for (size_t i = 0; i < 40 && good; i++) {
		end_rank(2, SIGKILL);
		good = all_see(3, 5000);
		start_rank(&s);
		usleep((useconds_t)(random_bits(11, i) % 3000));
		board->orders.offer[0] = 2 + 2 * i;
		for (int k = 0; k < 5000 && board->orders.offer[0]; k++)
			usleep(1000);
		good &= all_see(7, 5000) && all_come_to(7, 5000);
		if (!good)
			tap_diag("round %zu", i);
	}
	tap_ok(good && ranks_finish(3), "a plan and a newcomer at once, %s, asleep", transport_of(tcp));
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
	good = ranks_vote(3);
	board->orders.offer[0] = 7;
	usleep(200000);
	good &= greatest_plan(3) == 0;
	tap_ok(good && error_lines(said) == 1 && count(said, "of rank 0 is refused: odd") == 1,
		"a plan that one rank refuses takes effect on none");
	board->orders.offer[0] = 8;
	tap_ok(all_have_plan(7, 1, 5000) && ranks_finish(3), "and the next one does");
	error_lines(said);
}

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
	tap_ok(ranks_finish(4) && records_equal(4), "one that wakes by itself takes the others along");
	error_lines(said);
}

int main(void)
{
	tests_begin();
	for (int tcp = 0; tcp < 2; tcp++) {
		test_plans(tcp, false);
		test_plans(tcp, true);
		test_asleep(tcp);
		test_both_at_once(tcp);
	}
	test_refused_plan();
	return tests_done();
}
