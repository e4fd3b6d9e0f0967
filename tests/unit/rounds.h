/* Rounds of votes, dispatches and combines among a crew, every byte of which is checked. */
#ifndef DS_TESTS_ROUNDS_H
#define DS_TESTS_ROUNDS_H

#include "crew.h"

/* How far this rank has come in an epoch: the next vote, and rounds of each lane. */
struct rounds { uint64_t votes, lanes[EP_LANES], salt; struct ranks members; };

static uint64_t rounds_seed(uint64_t salt, size_t src, size_t dst, enum slot_kind kind, size_t lane, uint64_t seq)
{
	return random_bits(salt * 64 + src * 16 + dst, seq * 8 + kind * 2 + lane);
}

/* 0, full, or anything. */
static size_t rounds_size(uint64_t seed, size_t most)
{
	uint64_t r = random_bits(seed, 1);

	return r % 5 == 0 ? 0 : r % 5 == 1 ? most : (r >> 8) % (most + 1);
}

static uint8_t rounds_byte(uint64_t seed, size_t i)
{
	return (uint8_t)(seed >> (i % 8 * 8)) ^ (uint8_t)(i / 8);
}

CREW_USED static void rounds_post(struct transport *t, size_t rank, const struct crew_config *c, const struct rounds *m,
	enum slot_kind kind, size_t lane, uint64_t seq)
{
	for (size_t dst = ranks_next(&m->members, 0); dst < c->world; dst = ranks_next(&m->members, dst + 1)) {
		uint64_t seed = rounds_seed(m->salt, rank, dst, kind, lane, seq);
		size_t n = rounds_size(seed, c->bytes[kind]);
		uint8_t *p = transport_slot(t, dst, kind, lane);

		for (size_t i = 0; i < n; i++)
			p[i] = rounds_byte(seed, i);
		transport_post(t, dst, kind, lane, seq, n);
	}
}

CREW_USED static int rounds_check(struct transport *t, size_t rank, const struct crew_config *c, const struct rounds *m,
	enum slot_kind kind, size_t lane, uint64_t seq)
{
	for (size_t src = ranks_next(&m->members, 0); src < c->world; src = ranks_next(&m->members, src + 1)) {
		uint64_t seed = rounds_seed(m->salt, src, rank, kind, lane, seq);
		int64_t when;
		size_t n;
		const uint8_t *p = transport_message(t, src, kind, lane, &n, &when);

		if (n != rounds_size(seed, c->bytes[kind]))
			return crew_fail(rank, "a message of another size", (long long)n, (long long)src);
		if ((uintptr_t)p % 64 || when > time_mono_ns())
			return crew_fail(rank, "alignment or time", (long long)(uintptr_t)p % 64, when);
		for (size_t i = 0; i < n; i++)
			if (p[i] != rounds_byte(seed, i))
				return crew_fail(rank, "a wrong byte", (long long)i, (long long)src);
	}
	return 0;
}

static int rounds_take(struct transport *t, size_t rank, const struct crew_config *c, const struct rounds *m,
	enum slot_kind kind, size_t lane, uint64_t seq)
{
	int rc = transport_wait(t, kind, lane, seq, &m->members);

	if (!rc && !transport_there(t, kind, lane, seq, &m->members))
		return crew_fail(rank, "waited for but not there", kind, (long long)seq);
	return rc ? rc : rounds_check(t, rank, c, m, kind, lane, seq);
}

/* The next vote: after it all have read all that was said before. */
CREW_USED static int rounds_vote(struct transport *t, size_t rank, const struct crew_config *c, struct rounds *m)
{
	uint64_t v = m->votes++;

	rounds_post(t, rank, c, m, SLOT_VOTE, v % 2, v / 2 + 1);
	return rounds_take(t, rank, c, m, SLOT_VOTE, v % 2, v / 2 + 1);
}

/* One vote, and a dispatch and a combine in each lane, the lanes in any order, the same on all.  0, EP_BROKEN or 1. */
CREW_USED static int rounds_one(struct transport *t, size_t rank, const struct crew_config *c, struct rounds *m)
{
	enum { DISPATCH, ARRIVE, COLLECT, DONE } at[EP_LANES] = { DISPATCH, DISPATCH };
	uint64_t r = random_bits(m->salt, m->votes);
	int rc = rounds_vote(t, rank, c, m);

	while (!rc && (at[0] < DONE || at[1] < DONE)) {
		size_t lane = r & 1;
		uint64_t seq = m->lanes[lane] + 1;

		r = r >> 1 | r << 63;
		if (at[lane] == DONE)
			continue;
		if (at[lane] == DISPATCH) {
			rounds_post(t, rank, c, m, SLOT_DISPATCH, lane, seq);
		} else if (at[lane] == ARRIVE) {
			rc = rounds_take(t, rank, c, m, SLOT_DISPATCH, lane, seq);
			rounds_post(t, rank, c, m, SLOT_COMBINE, lane, seq);
		} else {
			rc = rounds_take(t, rank, c, m, SLOT_COMBINE, lane, seq);
			m->lanes[lane]++;
		}
		at[lane]++;
	}
	return rc;
}

/* n rounds in an epoch that has begun. */
CREW_USED static int rounds_many(struct transport *t, size_t rank, const struct crew_config *c, struct rounds *m,
	size_t n)
{
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i++)
		rc = rounds_one(t, rank, c, m);
	return rc;
}

/* The epoch that should be, and nothing said in it. */
CREW_USED static int rounds_begin(struct transport *t, size_t rank, struct rounds *m)
{
	int rc;

	*m = (struct rounds){ 0 };
	rc = crew_epoch(t, rank, &m->members);
	m->salt = ranks_count(&m->members); /* the same on all, another after each loss */
	return rc;
}

#endif
