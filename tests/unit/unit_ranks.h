/*
 * Ranks of a unit as processes, for tests: each does what the test orders, one at a time or at once, and writes down
 * what it sees in memory that all share.
 */
#ifndef DS_TESTS_UNIT_RANKS_H
#define DS_TESTS_UNIT_RANKS_H

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "base/log.h"
#include "base/random.h"
#include "base/time.h"
#include "ep/unit.h"
#include "tap.h"

enum { RANKS = 17, RECORDS = 1 << 16, STDERR_BYTES = 1 << 16 };

/* What a rank saw in one vote. */
struct record { uint64_t epoch, turn, members, digest; };

/* How often ranks die in some test is random: what they hold must not grow with it. */
static int64_t resident_kb(void)
{
	long total, resident = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	if (f && fscanf(f, "%ld %ld", &total, &resident) != 2)
		resident = 0;
	if (f)
		fclose(f);
	return resident * 4;
}

enum { IDLE, OPENING, OPEN, REFUSED, RUNNING, PARKED, ENDED };

struct seen {
	_Atomic int state, code;
	_Atomic uint64_t epoch, members, votes, records, plan, plan_bytes, prepared, losses, joins, bells, cpu_us, wish;
	_Atomic int64_t recovery_ns, pause_ns, fds, kb;
	_Atomic bool over;
	char text[1100];                /* of the error */
	struct record record[RECORDS];
};

struct orders {
	_Atomic bool ended;             /* inputs have ended */
	_Atomic bool parked;            /* ranks want nothing, and sleep */
	_Atomic bool count;             /* descriptors and memory at every vote */
	_Atomic uint64_t leave;         /* these ranks leave */
	_Atomic uint64_t offer[RANKS];  /* a plan to offer: its seed, 0: none */
};

struct board { struct orders orders; struct seen seen[RANKS]; };

struct rank_start {
	const char *addr, *transport, *model;
	size_t rank, world;
	int64_t unit_timeout_ns, peer_timeout_ns, delay_ns;
	size_t bytes;
	bool refuses; /* plans whose seed is odd */
};

static struct board *board;
static pid_t pids[RANKS];
static char errors_at[100];

TAP_USED static void board_new(void)
{
	if (board)
		munmap(board, sizeof(*board));
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (board == MAP_FAILED)
		tap_bail("no memory");
}

static struct seen *me;
static const struct rank_start *my_start;
static struct ranks placed_members;
static uint64_t placed_id;

static int prepare(void *ctx, uint64_t id, const void *plan, size_t n, struct ds_err *err)
{
	uint64_t seed = 0;

	(void)ctx;
	if (n >= sizeof(seed))
		memcpy(&seed, plan, sizeof(seed));
	if (my_start->refuses && seed % 2)
		return err_set(err, DS_DATA, "odd");
	for (size_t i = 8; i < n; i++)
		if (((const uint8_t *)plan)[i] != (uint8_t)(seed + i))
			return err_set(err, DS_DATA, "byte %zu of %zu is wrong", i, n);
	if (id > me->prepared)
		me->prepared = id;
	return 0;
}

static int placed(void *ctx, uint64_t id, const void *plan, size_t n, const struct ranks *members, struct ds_err *err)
{
	(void)ctx, (void)plan, (void)err;
	me->plan = id;
	me->plan_bytes = n;
	placed_id = id;
	placed_members = *members;
	return 0;
}

static const struct unit_ops rank_ops = { prepare, placed };

static int64_t count_fds(void)
{
	int64_t n = 0;

	for (int fd = 0; fd < 1000; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static uint64_t mix(uint64_t a, uint64_t b) { return random_bits(a, b); }

static void write_down(struct unit *u, const struct unit_round *r, size_t world)
{
	struct unit_stat s;
	uint64_t d = mix(r->kind, r->lanes), n = me->records;

	unit_stat(u, &s);
	d = mix(mix(d, r->members.bits[0]), r->over);
	d = mix(d, placed_id);
	for (size_t i = 0; i < world; i++)
		d = mix(mix(d, r->rows[i][0]), r->rows[i][1]);
	if (n < RECORDS)
		me->record[n] = (struct record){ r->epoch, 0, r->members.bits[0], d };
	/* turn: how many of this epoch there were before */
	if (n && n < RECORDS && me->record[n - 1].epoch == r->epoch)
		me->record[n].turn = me->record[n - 1].turn + 1;
	me->records = n + 1; /* first: who sees the rest may compare */
	me->epoch = r->epoch;
	me->members = r->members.bits[0];
	me->votes = s.votes;
	me->losses = s.losses;
	me->joins = s.joins;
	me->recovery_ns = s.recovery_ns;
	if (n % 256 == 0 || board->orders.count) {
		me->fds = count_fds();
		me->kb = resident_kb();
	}
	me->over = r->over;
	if (placed_members.bits[0] != r->members.bits[0])
		me->code = 255;
}

/* What a vote said of this rank is what this rank said. */
static bool round_right(const struct unit_vote *v, const struct unit_round *r, const struct rank_start *s)
{
	bool same = v->kind == r->kind && v->kind != UNIT_NONE, second = r->kind == UNIT_MTP ? false : same;
	size_t lanes = 1;

	for (size_t i = 0; i < s->world; i++)
		lanes += lanes == 1 && r->rows[i][1];
	return ranks_has(&r->members, s->rank) && r->kind >= v->kind && r->lanes == lanes &&
		r->rows[s->rank][0] == (same ? v->rows[0] : 0) && r->rows[s->rank][1] == (second ? v->rows[1] : 0) &&
		(!r->over || (v->ended && v->kind == UNIT_NONE));
}

static uint64_t cpu_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void sleep_parked(struct unit *u)
{
	struct pollfd p = { .fd = unit_bell_fd(u), .events = POLLIN };

	me->state = PARKED;
	if (unit_park(u, true)) {
		while (poll(&p, 1, 20) == 0 && board->orders.parked && !board->orders.ended && !board->orders.leave &&
			!board->orders.offer[my_start->rank])
			me->cpu_us = cpu_us();
		me->bells += p.revents != 0;
	}
	unit_park(u, false);
	me->state = RUNNING;
}

static void make_offer(struct unit *u, uint64_t seed)
{
	size_t n = 8 + (size_t)(seed * 977 % 3000000);
	uint8_t *plan = malloc(n);
	struct ds_err err;
	uint64_t id;

	memcpy(plan, &seed, sizeof(seed));
	for (size_t i = 8; i < n; i++)
		plan[i] = (uint8_t)(seed + i);
	if (unit_offer(u, plan, n, &id, &err))
		me->code = err.code;
	free(plan);
}

static void vote_on(struct unit *u, const struct rank_start *s)
{
	struct unit_round r = { 0 };
	struct ds_err err;

	me->state = RUNNING;
	while (!r.over && !(board->orders.leave >> s->rank & 1)) {
		uint64_t seed = atomic_exchange(&board->orders.offer[s->rank], 0), x = mix(s->rank, me->records);
		struct unit_vote v = { .kind = board->orders.parked ? UNIT_NONE : (enum unit_kind)(x % 3),
			.rows = { (uint32_t)(x >> 8 & 63), (uint32_t)(x >> 20 & 1 ? x >> 24 & 63 : 0) },
			.ended = board->orders.ended };
		uint64_t id;
		int64_t pause;

		if (seed)
			make_offer(u, seed);
		if (v.ended)
			v.kind = UNIT_NONE;
		if (unit_vote(u, &v, &r, &err)) {
			me->code = err.code;
			snprintf(me->text, sizeof(me->text), "%s", err.text);
			break;
		}
		if (!round_right(&v, &r, s))
			me->code = 254;
		write_down(u, &r, s->world);
		unit_planned(u, &id, &pause);
		me->pause_ns = pause;
		if (board->orders.parked && !board->orders.ended && !r.over)
			sleep_parked(u);
	}
}

static void rank_main(const struct rank_start *s)
{
	struct unit_term term = { .name = "model" };
	struct unit_config c = { .addr = s->addr, .rank = s->rank, .world = s->world, .transport = s->transport,
		.unit_timeout_ns = s->unit_timeout_ns ? s->unit_timeout_ns : 20000000000,
		.peer_timeout_ns = s->peer_timeout_ns ? s->peer_timeout_ns : 5000000000,
		.terms = &term, .term_count = 1,
		.ops = &rank_ops, .bytes = { 0, s->bytes ? s->bytes : 4096, 4096 } };
	struct unit *u = NULL;
	struct ds_err err;
	char name[30];

	snprintf(name, sizeof(name), "rank%zu", s->rank);
	log_init(name, 0, getenv("UNIT_VERBOSE") ? LOG_DEBUG : LOG_WARN);
	snprintf(term.value, sizeof(term.value), "%s", s->model ? s->model : "m");
	my_start = s;
	me = &board->seen[s->rank];
	me->state = OPENING;
	if (s->delay_ns)
		nanosleep(&(struct timespec){ .tv_sec = s->delay_ns / 1000000000, .tv_nsec = s->delay_ns % 1000000000 },
			NULL);
	if (unit_open(&u, &c, &err)) {
		log_err(&err);
		me->code = err.code;
		snprintf(me->text, sizeof(me->text), "%s", err.text);
		me->state = REFUSED;
		exit(1);
	}
	me->state = OPEN;
	vote_on(u, s);
	unit_close(u);
	me->fds = count_fds();
	me->state = ENDED;
	exit(0);
}

TAP_USED static void start_rank(const struct rank_start *s)
{
	fflush(stdout);
	memset(&board->seen[s->rank], 0, offsetof(struct seen, record));
	pids[s->rank] = fork();
	if (pids[s->rank])
		return;
	if (errors_at[0]) {
		int fd = open(errors_at, O_WRONLY | O_CREAT | O_APPEND, 0600);

		dup2(fd, 2);
		close(fd);
	}
	rank_main(s);
}

TAP_USED static void start_ranks(const struct rank_start *s)
{
	struct rank_start one = *s;

	for (size_t r = 0; r < s->world; r++) {
		one.rank = r;
		start_rank(&one);
	}
}

TAP_USED static bool wait_for(size_t rank, int state, int64_t ms)
{
	int64_t until = time_mono_ns() + ms * 1000000;

	while (board->seen[rank].state != state && time_mono_ns() < until)
		usleep(500);
	return board->seen[rank].state == state;
}

TAP_USED static void end_rank(size_t rank, int sig)
{
	if (pids[rank] <= 0)
		return;
	if (sig)
		kill(pids[rank], sig);
	waitpid(pids[rank], NULL, 0);
	pids[rank] = 0;
}

/* All end by themselves, within that time; who does not is killed, and it is false. */
TAP_USED static bool reap(size_t world, int64_t ms)
{
	int64_t until = time_mono_ns() + ms * 1000000;
	bool good = true;

	for (size_t r = 0; r < world; r++) {
		if (pids[r] <= 0)
			continue;
		while (waitpid(pids[r], NULL, WNOHANG) == 0) {
			if (time_mono_ns() > until) {
				tap_diag("rank %zu hangs: state %d, epoch %d, members %x", r, board->seen[r].state,
					(int)board->seen[r].epoch, (unsigned)board->seen[r].members);
				kill(pids[r], SIGCONT);
				end_rank(r, SIGKILL);
				good = false;
				break;
			}
			usleep(500);
		}
		pids[r] = 0;
	}
	return good;
}

/* Every rank's next vote from now on is seen by all of these, in one epoch: 0 where not within that time. */
TAP_USED static bool all_see(uint64_t members, int64_t ms)
{
	int64_t until = time_mono_ns() + ms * 1000000;
	bool same = false;

	while (!same && time_mono_ns() < until) {
		uint64_t epoch = 0;

		same = true;
		for (size_t r = 0; r < RANKS; r++) {
			if (!(members >> r & 1))
				continue;
			same &= board->seen[r].members == members && (!epoch || board->seen[r].epoch == epoch);
			epoch = board->seen[r].epoch;
		}
		if (!same)
			usleep(500);
	}
	return same;
}

/* What ranks saw in the same vote of the same epoch is equal, where they were members of one set. */
TAP_USED static bool records_equal(size_t world)
{
	size_t compared = 0;

	for (size_t a = 0; a < world; a++)
		for (size_t b = 0; b < a; b++) {
			const struct seen *x = &board->seen[a], *y = &board->seen[b];
			size_t i = 0, j = 0;

			while (i < x->records && j < y->records && i < RECORDS && j < RECORDS) {
				const struct record *p = &x->record[i], *q = &y->record[j];

				if (p->epoch != q->epoch || p->turn != q->turn) {
					if (p->epoch < q->epoch || (p->epoch == q->epoch && p->turn < q->turn))
						i++;
					else
						j++;
					continue;
				}
				if (p->digest != q->digest && p->members >> b & 1 && q->members >> a & 1) {
					tap_diag("ranks %zu and %zu differ in epoch %d, vote %d", a, b, (int)p->epoch,
						(int)p->turn);
					return false;
				}
				compared++;
				i++;
				j++;
			}
		}
	for (size_t r = 0; r < world; r++)
		compared += board->seen[r].records > RECORDS; /* the last ones were not written down */
	return compared > 0 || world == 1;
}

#endif
