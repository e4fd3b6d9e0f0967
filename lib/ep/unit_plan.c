/*
 * Plans: offered by any rank, sent to all, prepared by each; a vote in which all have the same one ready brings it into
 * effect.  Who lacks one, because whoever offered it died while sending, gets it from another after the next vote.
 */
#include "ep/unit_impl.h"

#include "base/log.h"

enum { CHUNK = 1 << 20, MOST_BYTES = 1 << 28 };

static struct unit_plan *find(struct unit *u, uint64_t id)
{
	struct unit_plan *p = u->plans;

	while (p && p->id != id)
		p = p->next;
	return p;
}

static void remove_plan(struct unit *u, struct unit_plan *p)
{
	struct unit_plan **at = &u->plans;

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	free(p->bytes);
	free(p);
}

static struct unit_plan *add(struct unit *u, uint64_t id, size_t total)
{
	struct unit_plan *p = mem_calloc(1, sizeof(*p));

	if (p)
		p->bytes = mem_calloc(1, total ? total : 1);
	if (!p || !p->bytes) {
		free(p);
		return NULL;
	}
	p->id = id;
	p->total = total;
	p->next = u->plans;
	u->plans = p;
	if (id > u->known)
		u->known = id;
	return p;
}

const struct unit_plan *unit_plan_find(const struct unit *u, uint64_t id)
{
	const struct unit_plan *p = u->plans;

	while (p && (p->id != id || !p->ready))
		p = p->next;
	return p;
}

uint64_t unit_plan_ready(const struct unit *u)
{
	uint64_t most = u->m.now.plan;

	for (const struct unit_plan *p = u->plans; p; p = p->next)
		if (p->ready && p->id > most)
			most = p->id;
	return most;
}

void unit_plan_ids(const struct unit *u, uint64_t ids[UNIT_PLANS_TOLD])
{
	size_t n = 0;

	memset(ids, 0, UNIT_PLANS_TOLD * sizeof(*ids));
	for (uint64_t below = UINT64_MAX; n < UNIT_PLANS_TOLD; below = ids[n++])
		for (const struct unit_plan *p = u->plans; p; p = p->next)
			if (p->ready && p->id < below && p->id > ids[n])
				ids[n] = p->id;
}

/* Behind what was voted for and what is in effect nothing can come into effect any more; but to a newcomer that serves
 * alone, with a later plan of its own, what is in effect in the unit that takes it in. */
void unit_plan_prune(struct unit *u)
{
	uint64_t now = u->m.now.plan;
	struct unit_plan *next;

	for (struct unit_plan *p = u->plans; p && !u->m.newcomer; p = next) {
		next = p->next;
		if (!p->preparing && (p->id < now || (p->id > now && p->id < u->voted)))
			remove_plan(u, p);
	}
}

void unit_plan_free(struct unit *u)
{
	while (u->plans)
		remove_plan(u, u->plans);
}

/* ---- sending ---- */

static void send_plan(struct unit *u, size_t to, const struct unit_plan *p)
{
	struct buf b = { 0 };
	struct ds_err err;
	size_t at = 0, n;

	u->peer[to].plan_sent = p->id;
	do {
		struct msg_plan msg = { .id = p->id, .total = p->total, .offset = at };

		n = p->total - at < CHUNK ? p->total - at : CHUNK;
		b.len = 0;
		buf_add(&b, &msg, sizeof(msg));
		buf_add(&b, p->bytes + at, n);
		if (b.nomem || mesh_send(u->mesh, to, UNIT_PLAN, b.p, b.len, NULL, 0, &err))
			break;
		at += n;
	} while (at < p->total);
	buf_free(&b);
}

void unit_plan_feed(struct unit *u, size_t to)
{
	const struct unit_plan *p = unit_plan_find(u, u->m.now.plan);

	if (!p || ranks_next(&u->m.now.ranks, 0) != u->c.rank || u->peer[to].plan_sent >= p->id)
		return;
	for (size_t i = 0; i < UNIT_PLANS_TOLD; i++)
		if (u->peer[to].said.plans[i] == p->id)
			return;
	send_plan(u, to, p);
}

void unit_plan_heal(struct unit *u, const struct unit_ballot *ballots, const struct ranks *members)
{
	const struct unit_plan *p;
	uint64_t most = 0;
	size_t who = u->c.world;

	for (size_t r = ranks_next(members, 0); r < u->c.world; r = ranks_next(members, r + 1))
		if (ballots[r].prepared > most) {
			if (ballots[r].prepared > u->known)
				u->known = ballots[r].prepared;
			most = ballots[r].prepared;
			who = r;
		}
	p = who == u->c.rank ? unit_plan_find(u, most) : NULL;
	for (size_t r = ranks_next(members, 0); p && r < u->c.world; r = ranks_next(members, r + 1))
		if (ballots[r].prepared < most && u->peer[r].plan_sent < most)
			send_plan(u, r, p);
}

/* ---- preparing, on the mesh's thread ---- */

static void refuse(struct unit *u, struct unit_plan *p)
{
	struct ds_err err;

	p->refused = true;
	p->ready = false;
	for (size_t r = ranks_next(&u->m.connected, 0); r < u->c.world; r = ranks_next(&u->m.connected, r + 1))
		if (r != u->c.rank)
			mesh_send(u->mesh, r, UNIT_NO_PLAN, &p->id, sizeof(p->id), NULL, 0, &err);
}

/* The lock is given up meanwhile. */
static void prepare(struct unit *u, struct unit_plan *p)
{
	const uint64_t id = p->id;
	struct ds_err err;
	int rc;

	p->preparing = true;
	pthread_mutex_unlock(&u->lock);
	rc = u->c.ops->prepare(u->c.ctx, id, p->bytes, p->total, &err);
	pthread_mutex_lock(&u->lock);
	p->preparing = false;
	if (rc) {
		log_msg(LOG_WARN, "unit: plan %llu of rank %llu is refused: %s", (unsigned long long)id >> 32,
			(unsigned long long)id >> 22 & 1023, err.text);
		refuse(u, p);
		return;
	}
	if (p->refused)
		return;
	p->ready = true;
	if (u->m.newcomer)
		unit_say_newcomer(u);
	unit_tell_news(u);
}

void unit_plan_in(struct unit *u, size_t from, const void *data, size_t n)
{
	const struct msg_plan *msg = data;
	struct unit_plan *p;

	(void)from;
	if (n < sizeof(*msg) || msg->total > MOST_BYTES || msg->offset > msg->total ||
		n - sizeof(*msg) > msg->total - msg->offset || msg->id == 0 || unit_plan_far(u->known, msg->id))
		return;
	p = find(u, msg->id);
	if (!p && msg->offset == 0 && (u->m.newcomer || msg->id > u->m.now.plan))
		p = add(u, msg->id, (size_t)msg->total);
	if (!p || p->ready || p->refused || p->preparing || p->own || p->total != msg->total || p->got != msg->offset)
		return;
	n -= sizeof(*msg);
	memcpy(p->bytes + p->got, msg + 1, n);
	p->got += n;
	if (p->got == p->total)
		prepare(u, p);
}

void unit_plan_refused(struct unit *u, uint64_t id)
{
	struct unit_plan *p = find(u, id);

	if (!p || id == u->m.now.plan)
		return;
	p->refused = true;
	p->ready = false;
}

/* What this rank has offered itself. */
static void prepare_own(void *arg)
{
	struct unit *u = arg;
	struct unit_plan *p;

	pthread_mutex_lock(&u->lock);
	do {
		for (p = u->plans; p && (p->ready || p->refused || p->got < p->total || !p->own); p = p->next)
			;
		if (p) {
			p->own = false;
			prepare(u, p);
		}
	} while (p);
	pthread_mutex_unlock(&u->lock);
}

/* Above all that are known, and no other process', either of another rank or of one that was started again. */
static uint64_t next_id(const struct unit *u)
{
	return ((u->known >> 32) + 1) << 32 | (uint64_t)u->c.rank << 22 | (u->hello.self.incarnation & 0x3fffff);
}

int unit_offer(struct unit *u, const void *plan, size_t n, uint64_t *id, struct ds_err *err)
{
	struct unit_plan *p;

	if (n > MOST_BYTES)
		return err_set(err, DS_DATA, "a plan of %zu bytes is too large", n);
	pthread_mutex_lock(&u->lock);
	p = add(u, next_id(u), n);
	if (p) {
		memcpy(p->bytes, plan, n);
		p->got = n;
		p->own = true;
		*id = p->id;
		for (size_t r = ranks_next(&u->m.connected, 0); r < u->c.world;
			r = ranks_next(&u->m.connected, r + 1))
			if (r != u->c.rank)
				send_plan(u, r, p);
	}
	pthread_mutex_unlock(&u->lock);
	if (!p)
		return err_nomem(err, n, "a plan");
	return mesh_call(u->mesh, prepare_own, u, err);
}
