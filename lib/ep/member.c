#include "ep/member.h"

#include <stdlib.h>

#include "base/mem.h"

static bool same(const struct member_set *a, const struct member_set *b)
{
	return a->epoch == b->epoch && ranks_equal(&a->ranks, &b->ranks);
}

static uint64_t max64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static struct ranks only(size_t r)
{
	struct ranks s = { { 0 } };

	ranks_add(&s, r);
	return s;
}

static bool within(const struct ranks *a, const struct ranks *b)
{
	struct ranks rest = ranks_minus(a, b);

	return ranks_count(&rest) == 0;
}

int member_init(struct member *m, size_t self, size_t world, const struct member_ops *ops, void *ctx,
	struct ds_err *err)
{
	memset(m, 0, sizeof(*m));
	m->self = self;
	m->world = world;
	m->ops = ops;
	m->ctx = ctx;
	m->want.ranks = only(self);
	m->connected = only(self);
	m->heard = mem_calloc(world, sizeof(*m->heard));
	return m->heard ? 0 : err_nomem(err, world * sizeof(*m->heard), "the members of a unit");
}

void member_free(struct member *m)
{
	free(m->heard);
	m->heard = NULL;
}

bool member_changing(const struct member *m)
{
	return m->want.epoch > m->now.epoch;
}

uint64_t member_floor(const struct member *m)
{
	return m->want.epoch;
}

struct ranks member_missing(const struct member *m)
{
	struct ranks s = { { 0 } };

	if (!member_changing(m))
		return s;
	for (size_t r = ranks_next(&m->want.ranks, 0); r < m->world; r = ranks_next(&m->want.ranks, r + 1))
		if (r != m->self && !same(&m->heard[r], &m->want))
			ranks_add(&s, r);
	return s;
}

static void forget(struct member *m, size_t who)
{
	ranks_del(&m->connected, who);
	ranks_del(&m->newcomers, who);
	m->heard[who] = (struct member_set){ 0 };
}

static void drop(struct member *m, size_t who)
{
	if (!ranks_has(&m->connected, who))
		return;
	forget(m, who);
	m->ops->drop(m->ctx, who);
}

/* Those to whom this rank was connected as a newcomer, and who are no members now. */
static void drop_strangers(struct member *m)
{
	struct ranks known = ranks_either(&m->now.ranks, &m->newcomers), out = ranks_minus(&m->connected, &known);

	for (size_t r = ranks_next(&out, 0); m->newcomer && r < m->world; r = ranks_next(&out, r + 1))
		drop(m, r);
}

static void install_if_agreed(struct member *m)
{
	struct ranks missing = member_missing(m);

	if (!member_changing(m) || !m->told || ranks_count(&missing))
		return;
	for (size_t r = ranks_next(&m->want.ranks, 0); r < m->world; r = ranks_next(&m->want.ranks, r + 1))
		if (r != m->self)
			m->want.plan = max64(m->want.plan, m->heard[r].plan);
	m->now = m->want;
	m->newcomers = ranks_minus(&m->newcomers, &m->now.ranks);
	drop_strangers(m);
	m->newcomer = false;
	m->begun = true;
	m->ops->installed(m->ctx);
}

/* A newcomer that nobody has proposed yet. */
static bool waiting(const struct member *m)
{
	return (m->newcomer || !m->begun) && ranks_count(&m->want.ranks) == 1;
}

/* Says what is wanted, to all of the set, once they are connected. */
static void tell(struct member *m)
{
	if (m->told || !member_changing(m) || !within(&m->want.ranks, &m->connected) || waiting(m))
		return;
	m->told = true;
	/* A newcomer decides nothing about plans: it may have had one of its own, which the others do not know. */
	m->want.plan = m->newcomer ? 0 : m->now.plan;
	for (size_t r = ranks_next(&m->want.ranks, 0); r < m->world; r = ranks_next(&m->want.ranks, r + 1))
		if (r != m->self)
			m->ops->tell(m->ctx, r, &m->want);
	install_if_agreed(m);
}

static void drop_all(struct member *m)
{
	for (size_t r = 0; r < m->world; r++)
		if (r != m->self)
			drop(m, r);
}

/* The proposal becomes this one.  Who is no longer in it is dropped; a newcomer is told, and stays one. */
static void propose(struct member *m, uint64_t epoch, const struct ranks *set)
{
	struct ranks out = ranks_minus(&m->want.ranks, set);

	if (epoch == m->want.epoch && ranks_equal(set, &m->want.ranks))
		return;
	m->want.epoch = epoch;
	m->want.ranks = *set;
	m->told = false;
	for (size_t r = ranks_next(&out, 0); r < m->world; r = ranks_next(&out, r + 1)) {
		if (ranks_has(&m->newcomers, r))
			m->ops->tell(m->ctx, r, &m->want);
		else
			drop(m, r);
	}
	tell(m);
}

void member_begin(struct member *m, uint64_t epoch, const struct ranks *all)
{
	m->newcomer = false;
	m->begun = true;
	m->want = (struct member_set){ .epoch = epoch, .ranks = *all };
	m->told = false;
	tell(m);
}

void member_connected(struct member *m, size_t who)
{
	ranks_add(&m->connected, who);
	m->heard[who] = (struct member_set){ 0 };
	tell(m);
}

/* Without the others: at once, where this rank has been a member of something. */
static void alone(struct member *m)
{
	struct ranks self = only(m->self);

	m->want.ranks = self;
	m->told = false;
	if (!m->begun) /* has never been in a unit */
		return;
	m->newcomer = false;
	m->want.epoch++;
	tell(m);
}

void member_withdraw(struct member *m)
{
	struct ranks self = only(m->self);

	drop_all(m);
	m->newcomer = false;
	if (!ranks_equal(&m->want.ranks, &self))
		alone(m);
}

static void give_up(struct member *m)
{
	member_withdraw(m);
	m->ops->excluded(m->ctx);
}

void member_lost(struct member *m, size_t who)
{
	struct ranks rest = m->want.ranks;

	if (who == m->self || (!ranks_has(&m->connected, who) && !ranks_has(&rest, who)))
		return;
	forget(m, who);
	if (m->newcomer) {
		give_up(m);
		return;
	}
	if (!ranks_has(&rest, who))
		return;
	ranks_del(&rest, who);
	propose(m, max64(m->want.epoch, m->now.epoch + 1), &rest);
}

/* A newcomer hears from the unit. */
static void hear_outside(struct member *m, size_t from, const struct member_set *what)
{
	bool adopted = ranks_has(&m->want.ranks, from), in = ranks_has(&what->ranks, m->self);
	struct ranks both;

	if (in && what->epoch > m->want.epoch && within(&what->ranks, &m->connected)) {
		m->want.epoch = what->epoch;
		m->want.ranks = what->ranks;
		m->told = false;
		tell(m);
	} else if (adopted && in && what->epoch == m->want.epoch) {
		both = ranks_both(&m->want.ranks, &what->ranks);
		propose(m, m->want.epoch, &both);
		install_if_agreed(m);
	} else if (in && what->epoch > m->want.epoch) {
		give_up(m); /* there is somebody whom it does not know */
	} else if ((in && !adopted) || (adopted && !in && what->epoch >= m->want.epoch)) {
		m->want.epoch = max64(m->want.epoch, what->epoch);
		alone(m);
		m->newcomer = true;
		m->ops->outside(m->ctx);
	}
}

static void hear_inside(struct member *m, const struct member_set *what)
{
	struct ranks set = ranks_both(&m->want.ranks, &what->ranks), more;
	uint64_t epoch = max64(m->want.epoch, what->epoch);

	if (what->epoch <= m->now.epoch) {
		if (within(&m->want.ranks, &what->ranks))
			return; /* what is installed, once more */
		epoch = max64(m->want.epoch, m->now.epoch + 1);
	} else if (what->epoch > m->want.epoch) {
		more = ranks_both(&what->ranks, &m->newcomers);
		set = ranks_either(&set, &more);
	}
	propose(m, epoch, &set);
	install_if_agreed(m);
}

void member_hear(struct member *m, size_t from, const struct member_set *what)
{
	if (!ranks_has(&m->connected, from) || from == m->self)
		return;
	m->heard[from] = *what;
	if (m->newcomer) {
		hear_outside(m, from, what);
	} else if (ranks_has(&m->want.ranks, from) && ranks_has(&what->ranks, m->self)) {
		hear_inside(m, what);
	} else if (!ranks_has(&m->want.ranks, from) && !ranks_has(&m->newcomers, from)) {
		drop(m, from); /* it does not know yet that it is none of this unit */
	} else if (ranks_has(&m->want.ranks, from) && !ranks_has(&m->newcomers, from)) {
		m->want.epoch = max64(m->want.epoch, what->epoch);
		give_up(m);
	}
}

void member_newcomer(struct member *m, size_t from, uint64_t floor)
{
	struct ranks rest = m->want.ranks;
	bool member = ranks_has(&m->now.ranks, from);

	if (!ranks_has(&m->connected, from) || (member && floor < m->now.epoch))
		return;
	ranks_add(&m->newcomers, from);
	if (!ranks_has(&rest, from) || (!member && floor < m->want.epoch))
		return;
	/* It has spoken of this number before, or has gone since: another number then. */
	ranks_del(&rest, from);
	propose(m, member ? max64(m->want.epoch, m->now.epoch + 1) : m->want.epoch, &rest);
	install_if_agreed(m);
}

void member_grow(struct member *m, uint64_t epoch, const struct ranks *newcomers)
{
	struct ranks there = ranks_both(newcomers, &m->newcomers), set = ranks_either(&m->now.ranks, &there);

	if (!member_changing(m) && !m->newcomer && epoch > m->now.epoch)
		propose(m, epoch, &set);
}

void member_apply(struct member *m)
{
	struct ranks self = only(m->self);

	drop_all(m);
	if (!ranks_equal(&m->want.ranks, &self))
		alone(m);
	m->newcomer = true;
}
