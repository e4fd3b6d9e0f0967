/*
 * The agreement on who is in a unit, by simulation: ranks that start, vote newcomers in, apply plans, suspect each
 * other rightly and wrongly, are cut off, die and start again, in random order, messages in random order (kept between
 * two).
 *
 * Agreement: no two ranks that count each other as members ever install different sets under one number.
 * Termination: when nothing more happens, all that live and reach each other are in one epoch.
 */
#include "ep/member.h"
#include "tap.h"

#include "base/random.h"

enum { MOST = 7, QUEUE = 512, HISTORY = 4096, PLANS = 1 << 16 };

enum kind { ACCEPT, END, TELL, NEWCOMER, TABLE, DECIDE };

struct msg {
	enum kind kind;
	bool join; /* of ACCEPT: as a newcomer */
	uint64_t conn, floor, e0;
	struct member_set set;
	struct ranks table;
};

struct node {
	struct member m;
	bool alive;
	size_t self;
	uint64_t conn[MOST];
	struct ranks knows[MOST];        /* what newcomers said that they are connected to */
	uint64_t floor[MOST];
	bool outside, installed, excluded;
};

static struct queue { struct msg m[QUEUE]; size_t first, n; } queues[MOST][MOST];
static struct node nodes[MOST];
static struct { size_t who; uint64_t epoch, plan; struct ranks set; } history[HISTORY];
static size_t history_n, world, installs, joins;
static uint64_t seed, turn, conns;
static uint32_t ready[PLANS]; /* the ranks that have made this plan ready */
static bool cut[MOST][MOST], failed, overflow;
static const char *why;

static size_t roll(size_t n)
{
	return (size_t)(random_bits(seed, turn++) % n);
}

static void fail(const char *what)
{
	failed = true;
	why = what;
}

static void put(size_t from, size_t to, struct msg m)
{
	struct queue *q = &queues[from][to];

	if (q->n == QUEUE) {
		overflow = true;
		return;
	}
	q->m[(q->first + q->n++) % QUEUE] = m;
}

static void close_conn(size_t a, size_t b)
{
	if (nodes[a].conn[b])
		put(a, b, (struct msg){ .kind = END, .conn = nodes[a].conn[b] });
	nodes[a].conn[b] = 0;
}

/* ---- what the machine asks for ---- */

static void op_tell(void *ctx, size_t to, const struct member_set *what)
{
	struct node *n = ctx;

	if (n->conn[to])
		put(n->self, to, (struct msg){ .kind = TELL, .conn = n->conn[to], .set = *what });
}

static void op_drop(void *ctx, size_t who)
{
	close_conn(((struct node *)ctx)->self, who);
}

static void op_installed(void *ctx)
{
	struct node *n = ctx;
	const struct member_set *s = &n->m.now;

	n->installed = true;
	installs++;
	if (!ranks_has(&s->ranks, n->self))
		fail("a rank installed a set without itself");
	for (size_t i = 0; i < history_n; i++) {
		if (history[i].epoch != s->epoch || history[i].who == n->self)
			continue;
		if (!ranks_has(&s->ranks, history[i].who) || !ranks_has(&history[i].set, n->self))
			continue;
		if (!ranks_equal(&s->ranks, &history[i].set))
			fail("two sets under one number");
		if (s->plan != history[i].plan)
			fail("two plans under one number");
	}
	if (s->plan && !(ready[s->plan] >> n->self & 1))
		fail("a plan in effect that this rank has not made ready");
	if (history_n < HISTORY) {
		history[history_n].who = n->self;
		history[history_n].epoch = s->epoch;
		history[history_n].plan = s->plan;
		history[history_n++].set = s->ranks;
	}
}

static void op_outside(void *ctx) { ((struct node *)ctx)->outside = true; }
static void op_excluded(void *ctx) { ((struct node *)ctx)->excluded = true; }

static const struct member_ops ops = { op_tell, op_drop, op_installed, op_outside, op_excluded };

/* ---- what a unit does with it ---- */

static void start_node(size_t r)
{
	struct node *n = &nodes[r];
	struct ds_err err;

	for (size_t i = 0; i < history_n; i++)
		if (history[i].who == r)
			history[i--] = history[--history_n];
	for (size_t i = 0; i < PLANS; i++)
		ready[i] &= ~(1u << r);
	member_free(&n->m);
	memset(n, 0, sizeof(*n));
	n->self = r;
	n->alive = true;
	if (member_init(&n->m, r, world, &ops, n, &err))
		tap_bail("%s", err.text);
}

static void say_newcomer(struct node *n)
{
	for (size_t r = 0; r < world; r++)
		if (n->conn[r])
			put(n->self, r, (struct msg){ .kind = NEWCOMER, .conn = n->conn[r],
				.floor = member_floor(&n->m), .table = n->m.connected });
}

static bool connect_to(struct node *n, size_t r)
{
	if (cut[n->self][r] || !nodes[r].alive) {
		member_withdraw(&n->m);
		return false;
	}
	n->conn[r] = ++conns;
	put(n->self, r, (struct msg){ .kind = ACCEPT, .conn = conns, .join = true });
	member_connected(&n->m, r);
	return true;
}

static void apply(struct node *n, const struct ranks *to)
{
	member_apply(&n->m);
	for (size_t r = 0; r < world; r++)
		if (ranks_has(to, r) && !connect_to(n, r))
			return;
	say_newcomer(n);
}

/* Members tell newcomers of those that they do not know. */
static void tell_table(struct node *n)
{
	const struct ranks *s = &n->m.now.ranks;

	if (n->m.now.epoch == 0)
		return;
	for (size_t r = 0; r < world; r++) {
		struct ranks both = ranks_both(&n->knows[r], s);

		if (ranks_has(&n->m.newcomers, r) && !ranks_equal(&both, s))
			put(n->self, r, (struct msg){ .kind = TABLE, .conn = n->conn[r], .table = *s });
	}
}

static void after(struct node *n)
{
	if (n->outside && n->m.newcomer)
		say_newcomer(n);
	if (n->installed)
		tell_table(n);
	n->outside = n->installed = n->excluded = false;
}

static void more_table(struct node *n, const struct ranks *s)
{
	struct ranks had = n->m.connected;

	if (!n->m.newcomer)
		return;
	for (size_t r = 0; r < world; r++)
		if (ranks_has(s, r) && !n->conn[r] && !connect_to(n, r))
			return;
	if (!ranks_equal(&had, &n->m.connected))
		say_newcomer(n);
}

static void lose(struct node *n, size_t r)
{
	close_conn(n->self, r);
	member_lost(&n->m, r);
}

static void decide(struct node *n, const struct msg *m)
{
	if (n->m.now.epoch != m->e0 || member_changing(&n->m))
		return;
	if (m->set.plan)
		n->m.now.plan = n->m.want.plan = m->set.plan;
	else
		member_grow(&n->m, m->set.epoch, &m->set.ranks);
}

static void deliver(size_t from, size_t to)
{
	struct queue *q = &queues[from][to];
	struct msg m = q->m[q->first];
	struct node *n = &nodes[to];

	q->first = (q->first + 1) % QUEUE;
	q->n--;
	if (!n->alive)
		return;
	if (m.kind == DECIDE) {
		decide(n, &m);
	} else if (m.kind == ACCEPT) {
		if (n->conn[from])
			lose(n, from);
		n->conn[from] = m.conn;
		if (!m.join && !ranks_has(&n->m.want.ranks, from)) {
			close_conn(to, from); /* it has been given up */
			return;
		}
		memset(&n->knows[from], 0, sizeof(n->knows[from]));
		member_connected(&n->m, from);
	} else if (n->conn[from] == m.conn) {
		if (m.kind == END) {
			n->conn[from] = 0;
			member_lost(&n->m, from);
		} else if (m.kind == TELL) {
			member_hear(&n->m, from, &m.set);
		} else if (m.kind == NEWCOMER) {
			n->knows[from] = m.table;
			n->floor[from] = m.floor;
			member_newcomer(&n->m, from, m.floor);
			tell_table(n);
		} else if (m.kind == TABLE) {
			more_table(n, &m.table);
		}
	}
	after(n);
}

/* ---- what happens ---- */

/* The members of n's epoch, where all of them have installed it and none is changing: they could vote. */
static bool can_vote(const struct node *n)
{
	const struct member_set *s = &n->m.now;

	for (size_t r = 0; r < world; r++)
		if (ranks_has(&s->ranks, r) && (!nodes[r].alive || nodes[r].m.now.epoch != s->epoch ||
			queues[r][r].n || /* it has not concluded the vote before */
			!ranks_equal(&nodes[r].m.now.ranks, &s->ranks) || member_changing(&nodes[r].m)))
			return false;
	return n->alive && s->epoch;
}

static void vote(size_t who, uint64_t plan)
{
	const struct member_set s = nodes[who].m.now;
	struct ranks all = ranks_first(world), one = { { 0 } };
	uint64_t floor = s.epoch;
	size_t j;

	if (!can_vote(&nodes[who]))
		return;
	for (size_t r = 0; r < world; r++) {
		if (!ranks_has(&s.ranks, r))
			continue;
		for (j = 0; j < world; j++) {
			struct ranks both = ranks_both(&nodes[r].knows[j], &s.ranks);

			if (!ranks_has(&nodes[r].m.newcomers, j) || !ranks_equal(&both, &s.ranks))
				ranks_del(&all, j);
			else if (nodes[r].floor[j] > floor)
				floor = nodes[r].floor[j];
		}
	}
	j = ranks_next(&all, 0);
	if (!plan && j == EP_MAX_WORLD)
		return;
	for (size_t r = 0; r < world; r++)
		if (plan && ranks_has(&s.ranks, r))
			ready[plan] |= 1u << r;
	if (!plan)
		ready[s.plan] |= 1u << j; /* it was fed the plan in effect */
	joins += !plan;
	if (!plan)
		ranks_add(&one, j);
	for (size_t r = 0; r < world; r++)
		if (ranks_has(&s.ranks, r))
			put(r, r, (struct msg){ .kind = DECIDE, .e0 = s.epoch,
				.set = { .epoch = floor + 1, .plan = plan, .ranks = one } });
}

/* The unit that others join: the largest, the lowest where two are as large. */
static size_t greatest(size_t me)
{
	size_t best = MOST, most = 0;

	for (size_t r = 0; r < world; r++) {
		size_t c = nodes[r].alive && !cut[me][r] ? ranks_count(&nodes[r].m.now.ranks) : 0;

		if (c > most) {
			best = r;
			most = c;
		}
	}
	return best;
}

static void try_join(size_t me)
{
	struct node *n = &nodes[me];
	size_t r = greatest(me);

	if (!n->alive || n->m.newcomer || r == MOST || ranks_has(&nodes[r].m.now.ranks, me))
		return;
	if (n->m.now.epoch == 0 && n->m.begun)
		return;
	apply(n, &nodes[r].m.now.ranks);
	after(n);
}

static void crash(size_t r)
{
	for (size_t i = 0; i < world; i++)
		close_conn(r, i);
	nodes[r].alive = false;
}

static void begin(void)
{
	struct ranks all = ranks_first(world);

	for (size_t r = 0; r < world; r++)
		start_node(r);
	for (size_t a = 0; a < world; a++)
		member_begin(&nodes[a].m, 1, &all);
	for (size_t a = 0; a < world; a++)
		for (size_t b = 0; b < a; b++) {
			nodes[a].conn[b] = ++conns;
			put(a, b, (struct msg){ .kind = ACCEPT, .conn = conns });
			member_connected(&nodes[a].m, b);
		}
}

static void mishap(void)
{
	size_t a = roll(world), b = roll(world), what = roll(6);

	if (what == 0 && nodes[a].alive) {
		crash(a);
	} else if (what == 1 && !nodes[a].alive) {
		start_node(a);
	} else if (what == 2 && a != b && nodes[a].alive && nodes[a].conn[b]) {
		lose(&nodes[a], b);
		after(&nodes[a]);
	} else if (what == 3 && a != b) {
		cut[a][b] = cut[b][a] = !cut[a][b];
		for (size_t i = 0; i < 2; i++, b ^= a, a ^= b, b ^= a)
			if (cut[a][b] && nodes[a].alive && nodes[a].conn[b]) {
				nodes[a].conn[b] = 0;
				member_lost(&nodes[a].m, b);
				after(&nodes[a]);
			}
	} else if (what == 4 && nodes[a].alive) {
		vote(a, (nodes[a].m.now.plan / MOST + 1) * MOST + a);
	}
}

static bool step(void)
{
	size_t at = roll(world * world);

	for (size_t i = 0; i < world * world; i++, at = (at + 1) % (world * world))
		if (queues[at / world][at % world].n) {
			deliver(at / world, at % world);
			return true;
		}
	return false;
}

static bool one_epoch(void)
{
	const struct node *first = NULL;

	for (size_t r = 0; r < world; r++) {
		if (!nodes[r].alive)
			continue;
		if (!first)
			first = &nodes[r];
		if (nodes[r].m.now.epoch != first->m.now.epoch || member_changing(&nodes[r].m) ||
			!ranks_equal(&nodes[r].m.now.ranks, &first->m.now.ranks) || !nodes[r].m.now.epoch)
			return false;
	}
	return true;
}

/* Who waits for somebody that is not there any more, or not connected to it any more, loses it in time. */
static void time_out(void)
{
	for (size_t r = 0; r < world; r++)
		for (size_t p = 0; p < world; p++) {
			struct node *n = &nodes[r];
			bool waits = ranks_has(&n->m.want.ranks, p) || (n->m.newcomer && n->conn[p]);

			if (n->alive && p != r && waits && (!n->conn[p] || nodes[p].conn[r] != n->conn[p])) {
				close_conn(r, p);
				member_lost(&n->m, p);
				after(n);
			}
		}
}

static void settle(void)
{
	memset(cut, 0, sizeof(cut));
	for (size_t tries = 0; tries < 200; tries++) {
		size_t n = 0;

		while (step() && !failed)
			if (++n > 100000) {
				fail("messages without end");
				return;
			}
		time_out();
		if (one_epoch() && !step())
			return;
		for (size_t r = 0; r < world; r++)
			vote(r, 0);
		if (tries % 4 == 3)
			for (size_t r = 0; r < world; r++)
				if (roll(2))
					try_join(r);
	}
	fail("not in one epoch in the end");
}

static bool run(uint64_t s, size_t steps, size_t mishaps)
{
	bool any = false;

	seed = s;
	turn = history_n = conns = 0;
	failed = overflow = false;
	why = "";
	world = 1 + roll(MOST);
	memset(queues, 0, sizeof(queues));
	memset(cut, 0, sizeof(cut));
	begin();
	for (size_t i = 0; i < steps && !failed; i++) {
		if (mishaps && roll(mishaps) == 0)
			mishap();
		else if (mishaps && roll(6) == 0)
			try_join(roll(world));
		else if (roll(6) == 0)
			vote(roll(world), 0);
		else
			step();
	}
	for (size_t r = 0; r < world; r++)
		any |= nodes[r].alive && nodes[r].m.begun;
	if (!failed && any)
		settle();
	return !failed && !overflow;
}

static void many(const char *what, size_t runs, size_t steps, size_t mishaps)
{
	size_t bad = 0;

	installs = joins = 0;
	for (size_t i = 0; i < runs && bad < 3; i++)
		if (!run(i + mishaps * 1000003, steps, mishaps)) {
			bad++;
			tap_diag("run %zu, %zu ranks: %s", i, world, overflow ? "too many messages" : why);
		}
	tap_ok(bad == 0, "%s: %zu runs, %zu epochs installed, %zu newcomers voted in", what, runs, installs, joins);
}

int main(void)
{
	many("a unit begins", 300, 100, 0);
	many("few mishaps", 3000, 300, 40);
	many("mishaps in all that happens", 3000, 400, 8);
	many("long runs", 200, 3000, 20);
	tap_ok(installs > 1000 && joins > 100, "something happened");
	for (size_t r = 0; r < MOST; r++)
		member_free(&nodes[r].m);
	return tap_done();
}
