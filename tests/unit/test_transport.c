/* The transports: every message where it belongs and to the bit, among processes; waiting, parking, the link. */
#include <poll.h>

#include "rounds.h"
#include "tap.h"

static const char *const kinds[] = { "shm", "tcp" };

static struct crew_config crew_of(const char *transport, size_t world,
	int (*run)(struct transport *t, size_t rank, const struct crew_config *c))
{
	return (struct crew_config){ .transport = transport, .world = world, .bytes = { 100, 9000, 20000 },
		.peer_timeout_ns = 10000 * MS, .run = run };
}

/* ---- messages ---- */

static int run_rounds(struct transport *t, size_t rank, const struct crew_config *c)
{
	struct rounds m;
	int rc = rounds_begin(t, rank, &m);

	return rc ? rc : rounds_many(t, rank, c, &m, 400 / c->world);
}

/* Everything is full and there at once. */
static int run_full(struct transport *t, size_t rank, const struct crew_config *c)
{
	struct rounds m;
	int rc = rounds_begin(t, rank, &m);

	rc = rc ? rc : rounds_many(t, rank, c, &m, 2);
	rc = rc ? rc : rounds_vote(t, rank, c, &m); /* in lane 0: all others are free */
	for (size_t i = SLOT_KINDS * EP_LANES; i-- && !rc;) {
		enum slot_kind k = (enum slot_kind)(i / EP_LANES);

		if (i == 0) /* the last */
			rc = transport_wait(t, SLOT_VOTE, 1, 3, &m.members);
		for (size_t dst = 0; dst < c->world; dst++) {
			memset(transport_slot(t, dst, k, i % EP_LANES), (int)(1 + i * c->world + rank), c->bytes[k]);
			transport_post(t, dst, k, i % EP_LANES, 3, c->bytes[k]);
		}
	}
	for (size_t i = 0; i < SLOT_KINDS * EP_LANES && !rc; i++)
		rc = transport_wait(t, (enum slot_kind)(i / EP_LANES), i % EP_LANES, 3, &m.members);
	for (size_t i = 0; i < SLOT_KINDS * EP_LANES && !rc; i++)
		for (size_t src = 0; src < c->world; src++) {
			int64_t when;
			size_t n, bad = 0;
			const uint8_t *p = transport_message(t, src, (enum slot_kind)(i / EP_LANES), i % EP_LANES, &n,
				&when);

			for (size_t k = 0; k < n; k++)
				bad += p[k] != (uint8_t)(1 + i * c->world + src);
			if (bad || n != c->bytes[i / EP_LANES])
				return crew_fail(rank, "a slot was overwritten", (long long)i, (long long)src);
		}
	return rc;
}

static void test_rounds(const char *kind)
{
	static const size_t worlds[] = { 1, 2, 3, 5, 8 };

	for (size_t i = 0; i < 5; i++) {
		struct crew_config c = crew_of(kind, worlds[i], run_rounds);

		c.spin_ns = i % 2 ? 20000 : 0;
		tap_ok(!crew_do(&c), "%s: rounds of %zu ranks, sizes from 0 to full, two lanes in any order", kind,
			worlds[i]);
		c.run = run_full;
		c.bytes[SLOT_DISPATCH] = 3 * 4096 - 64; /* no slack at a slot's end */
		c.bytes[SLOT_COMBINE] = 3 * 4096;
		tap_ok(!crew_do(&c), "%s: all slots of %zu ranks full at once", kind, worlds[i]);
	}
}

/* ---- epochs ---- */

static int run_epochs(struct transport *t, size_t rank, const struct crew_config *c)
{
	size_t fds = 0;
	struct rounds m;
	int rc = 0;

	for (uint64_t e = 1; e <= 30 && !rc; e++) {
		atomic_store(&crew_me.epoch, e * 2);
		nap((int64_t)(random_bits(e, rank) % 8) * MS);
		rc = rounds_begin(t, rank, &m);
		m.salt = e;
		if (!rc)
			rc = rounds_many(t, rank, c, &m, 1 + random_bits(e, 99) % 4);
		if (!rc)
			crew_meet(c, e);
		if (e == 3)
			fds = open_fds();
	}
	if (!rc && open_fds() > fds + 2 * c->world)
		rc = crew_fail(rank, "descriptors are left open", (long long)open_fds(), (long long)fds);
	return rc;
}

/* Rank 1 begins when the vote of rank 2 is there already, and of rank 0 one that belongs to an epoch that is over. */
static int run_late(struct transport *t, size_t rank, const struct crew_config *c)
{
	struct ranks all = ranks_first(3);
	struct rounds m;
	struct ds_err err;

	if (rank == 0 && !strcmp(c->transport, "tcp")) {
		if (transport_epoch(t, 7, &all, &err))
			return 1;
		for (uint64_t e = 8; e < 10; e++) { /* two epochs that the other never begins */
			memset(transport_slot(t, 1, SLOT_VOTE, 0), 0xee, c->bytes[SLOT_VOTE]);
			transport_post(t, 1, SLOT_VOTE, 0, 1, c->bytes[SLOT_VOTE]);
			if (transport_epoch(t, e, &all, &err))
				return 1;
		}
	}
	if (rank < 2)
		nap(rank == 0 ? 300 * MS : 100 * MS);
	atomic_store(&crew_me.epoch, 20);
	return rounds_begin(t, rank, &m) || rounds_many(t, rank, c, &m, 3);
}

static void test_epochs(const char *kind)
{
	struct crew_config c = crew_of(kind, 4, run_epochs);

	tap_ok(!crew_do(&c), "%s: thirty epochs that ranks begin at different times", kind);
	c = crew_of(kind, 3, run_late);
	tap_ok(!crew_do(&c), "%s: a vote of a later epoch is kept, one of an earlier one is not", kind);
}

/* ---- sleeping and waking ---- */

static int run_ping(struct transport *t, size_t rank, const struct crew_config *c)
{
	struct rounds m;
	int rc = rounds_begin(t, rank, &m);

	for (uint64_t i = 0; i < 8000 && !rc; i++) {
		uint64_t r = random_bits(rank, i);

		for (volatile uint64_t k = r % 4 ? 0 : r % 2000; k; k--)
			;
		rounds_post(t, rank, c, &m, SLOT_VOTE, i % 2, i / 2 + 1);
		if (c->arg && transport_park(t, true, i % 2, i / 2 + 1)) {
			struct pollfd p = { transport_bell_fd(t), POLLIN, 0 };

			do { /* the own vote is there already */
				if (poll(&p, 1, 5000) != 1)
					return crew_fail(rank, "the bell did not ring", (long long)i, 0);
			} while (!p.revents);
		}
		transport_park(t, false, 0, 0);
		rc = rounds_take(t, rank, c, &m, SLOT_VOTE, i % 2, i / 2 + 1);
	}
	return rc;
}

/* As a stage does: the own vote is not yet there when it parks. */
static int run_park(struct transport *t, size_t rank, const struct crew_config *c)
{
	struct rounds m;
	int rc = rounds_begin(t, rank, &m);
	size_t slept = 0;

	for (uint64_t i = 0; i < 8000 && !rc; i++) {
		uint64_t r = random_bits(rank, i);
		struct pollfd p = { transport_bell_fd(t), POLLIN, 0 };

		for (volatile uint64_t k = r % 4 ? 0 : r % 2000; k; k--)
			;
		if (i % c->world != rank && transport_park(t, true, i % 2, i / 2 + 1)) {
			slept++;
			if (poll(&p, 1, 5000) != 1)
				return crew_fail(rank, "the bell did not ring", (long long)i, 0);
		}
		transport_park(t, false, 0, 0);
		if (i % c->world == rank && i / c->world % 64 == 0) /* long enough for the other to fall asleep */
			nap(MS);
		rounds_post(t, rank, c, &m, SLOT_VOTE, i % 2, i / 2 + 1);
		rc = rounds_take(t, rank, c, &m, SLOT_VOTE, i % 2, i / 2 + 1);
	}
	return rc || slept < 20 ? crew_fail(rank, "never slept", rc, (long long)slept) : 0;
}

struct breaker { struct transport *t; uint64_t before; int64_t after; };

static void *break_soon(void *arg)
{
	struct breaker *b = arg;
	int64_t until = time_mono_ns() + b->after;

	while (time_mono_ns() < until)
		;
	transport_break(b->t, b->before);
	return NULL;
}

/* Breaks that come at any moment of a wait; no answer ever comes. */
static int run_breaks(struct transport *t, size_t rank, const struct crew_config *c)
{
	struct ranks all = ranks_first(c->world);
	struct ds_err err;

	for (uint64_t e = 1; e <= 600; e++) {
		struct breaker b = { t, e + 1, (int64_t)(random_bits(rank, e) % 60000) };
		int64_t when;
		pthread_t thread;

		if (transport_epoch(t, e, &all, &err))
			return crew_fail(rank, "an epoch does not begin", (long long)e, 0);
		pthread_create(&thread, NULL, break_soon, &b);
		if (transport_wait(t, SLOT_VOTE, 0, 1, &all) != EP_BROKEN)
			return crew_fail(rank, "a broken wait", (long long)e, 0);
		pthread_join(thread, NULL);
		when = time_mono_ns();
		if (transport_wait(t, SLOT_COMBINE, 1, 1, &all) != EP_BROKEN || time_mono_ns() - when > 1000 * MS ||
			!transport_there(t, SLOT_VOTE, 0, 1, &all) || transport_park(t, true, 0, 1))
			return crew_fail(rank, "broken again", (long long)e, 0);
		if (transport_epoch(t, e, &all, &err) != EP_BROKEN)
			return crew_fail(rank, "an epoch that is over begins", (long long)e, 0);
	}
	return 0;
}

static int run_idle(struct transport *t, size_t rank, const struct crew_config *c)
{
	struct pollfd p = { transport_bell_fd(t), POLLIN, 0 };
	struct rounds m;
	int64_t cpu;
	int rc = rounds_begin(t, rank, &m);

	rc = rc ? rc : rounds_many(t, rank, c, &m, 2);
	cpu = cpu_ns();
	if (!transport_park(t, true, 0, 2) || poll(&p, 1, 500) != 0)
		return crew_fail(rank, "rung for nothing", 0, 0);
	transport_ring(t);
	if (poll(&p, 1, 0) != 1 || !transport_park(t, false, 0, 0) || poll(&p, 1, 0) != 0)
		return crew_fail(rank, "the bell is not cleared", 0, 0);
	nap(rank == 0 ? 1800 * MS : 400 * MS); /* the others wait, longer than an eighth of the timeout */
	rc = rc ? rc : rounds_many(t, rank, c, &m, 1);
	cpu = cpu_ns() - cpu;
	return cpu > (tap_slow() ? 50 : 5) * MS ? crew_fail(rank, "not idle: us of two seconds", cpu / 1000, 0) : rc;
}

static void test_sleep(const char *kind)
{
	struct crew_config c = crew_of(kind, 2, run_ping);

	c.peer_timeout_ns = 1000000 * MS; /* no time at which a wait looks again: one not woken hangs */
	tap_ok(!crew_do(&c), "%s: 8000 votes to and fro, no wake-up is lost", kind);
	c.run = run_park;
	tap_ok(!crew_do(&c), "%s: parked in between, no bell is lost", kind);
	c = crew_of(kind, 1, run_breaks);
	tap_ok(!crew_do(&c), "%s: 600 breaks at any moment", kind);
	c = crew_of(kind, 4, run_idle);
	tap_ok(!crew_do(&c), "%s: parked or waiting, nothing is computed", kind);
}

/* ---- the imitation of a network ---- */

static int run_link(struct transport *t, size_t rank, const struct crew_config *c)
{
	struct ranks one = { { 0 } }, self = { { 0 } };
	struct rounds m;
	int64_t start, took, best = INT64_MAX, when;
	size_t n;

	if (rounds_begin(t, rank, &m) || rounds_many(t, rank, c, &m, 1) || rounds_vote(t, rank, c, &m))
		return 1;
	ranks_add(&one, 0);
	ranks_add(&self, rank);
	for (uint64_t v = 2; v < 6; v++) {
		start = time_mono_ns();
		if (rank == 0) /* 1 MB to each of two: 10 ms each of the link's time, 20 ms on the way */
			for (size_t dst = 0; dst < 3; dst++) {
				memcpy(transport_slot(t, dst, SLOT_COMBINE, v % 2), &start, sizeof(start));
				transport_post(t, dst, SLOT_COMBINE, v % 2, v / 2 + 1, 1000000);
			}
		if (rank == 0 && !transport_there(t, SLOT_COMBINE, v % 2, v / 2 + 1, &self))
			return crew_fail(rank, "a message to oneself is delayed", 0, 0);
		if (rank && transport_there(t, SLOT_COMBINE, v % 2, v / 2 + 1, &one)) {
			memcpy(&start, transport_message(t, 0, SLOT_COMBINE, v % 2, &n, &when), sizeof(start));
			if (time_mono_ns() - start < 20 * MS)
				return crew_fail(rank, "a message is there at once", 0, 0);
		}
		if (transport_wait(t, SLOT_COMBINE, v % 2, v / 2 + 1, &one))
			return crew_fail(rank, "broken", 0, 0);
		took = time_mono_ns();
		memcpy(&start, transport_message(t, 0, SLOT_COMBINE, v % 2, &n, &when), sizeof(start));
		took -= start;
		if (rank && took < (20 + 10 * (int64_t)rank) * MS)
			return crew_fail(rank, "a message of 1 MB took us", took / 1000, 0);
		best = took < best ? took : best;
		if (rounds_vote(t, rank, c, &m))
			return 1;
	}
	if (rank && best > (30 + 10 * (int64_t)rank) * MS) /* the machine may be busy at times */
		return crew_fail(rank, "the fastest message of 1 MB took us", best / 1000, 0);
	return 0;
}

/* What an epoch that is over still has on the slow link delays nothing of the next one. */
static int run_over(struct transport *t, size_t rank, const struct crew_config *c)
{
	int64_t start = time_mono_ns();
	struct rounds m;

	for (uint64_t e = 1; e < 4; e++) {
		atomic_store(&crew_me.epoch, e);
		if (rounds_begin(t, rank, &m) || rounds_vote(t, rank, c, &m))
			return 1;
		memset(transport_slot(t, !rank, SLOT_COMBINE, 0), 1, c->bytes[SLOT_COMBINE]);
		transport_post(t, !rank, SLOT_COMBINE, 0, 1, c->bytes[SLOT_COMBINE]); /* 10 s */
		crew_meet(c, e);
	}
	start = time_mono_ns() - start;
	return start > 5000 * MS ? crew_fail(rank, "three epochs took us", start / 1000, 0) : 0;
}

static void test_link(const char *kind)
{
	struct crew_config c = crew_of(kind, 3, run_link);

	c.link = (struct link){ .delay_ns = 20 * MS, .rate = 100000000 };
	c.bytes[SLOT_COMBINE] = 1000000;
	tap_ok(!crew_do(&c), "%s: a slow network's time, shared by two receivers", kind);
	c.run = run_over;
	c.world = 2;
	c.link.rate = 100000;
	tap_ok(!crew_do(&c), "%s: what is over does not delay what follows", kind);
}

/* ---- statistics ---- */

static int run_stat(struct transport *t, size_t rank, const struct crew_config *c)
{
	const int64_t pause = (tap_slow() ? 120 : 40) * MS; /* more than a busy machine takes from anybody else */
	struct transport_peer s, slow;
	struct rounds m;

	if (rounds_begin(t, rank, &m))
		return 1;
	for (size_t i = 0; i < 10; i++) {
		if (rank == 2)
			nap(pause);
		if (rounds_one(t, rank, c, &m))
			return 1;
	}
	transport_stat(t, 2, &slow);
	for (size_t r = 0; r < c->world; r++) {
		transport_stat(t, r, &s);
		if (s.sent != (r == rank ? 0 : 50) || s.received != s.sent)
			return crew_fail(rank, "messages counted", (long long)s.sent, (long long)s.received);
		if (rank != 2 && r != 2 && s.waited_ns > slow.waited_ns / 4)
			return crew_fail(rank, "waited for the wrong one", s.waited_ns, slow.waited_ns);
		if (r == rank && (s.sent_bytes || s.received_bytes))
			return crew_fail(rank, "bytes to oneself", (long long)s.sent_bytes,
				(long long)s.received_bytes);
	}
	if (rank != 2 && (slow.waited_ns < 7 * pause || slow.waited_ns > 30 * pause))
		return crew_fail(rank, "waited for the slow one: us", slow.waited_ns / 1000, 0);
	return 0;
}

static void test_stat(const char *kind)
{
	struct crew_config c = crew_of(kind, 3, run_stat);

	tap_ok(!crew_do(&c), "%s: messages are counted, and a slow rank is named", kind);
}

int main(void)
{
	for (size_t i = 0; i < 2; i++) {
		test_rounds(kinds[i]);
		test_epochs(kinds[i]);
		test_sleep(kinds[i]);
		test_link(kinds[i]);
		test_stat(kinds[i]);
	}
	return tap_done();
}
