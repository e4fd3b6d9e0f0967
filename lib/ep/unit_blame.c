/*
 * Ranks that send what makes no sense.  Such a rank is lost, as one whose connection fails: it alone, not those that it
 * sent it to.
 *
 * It comes back by itself, as a newcomer, and may be no better then: who lost it so has nothing to do with it for a
 * while, longer each time, so that the unit steps on in between.  It is not shut out for good: what a network spoils
 * once needs nobody to start a process again.  A process that is started again begins with a clean record.
 */
#include "ep/unit_impl.h"

#include <stdio.h>

#include "base/log.h"
#include "base/time.h"

static const int64_t first_while = 1000 * UNIT_MS, most_while = 64000 * UNIT_MS;

void unit_distrust(struct unit *u, size_t who)
{
	struct unit_peer *p = &u->peer[who];
	bool again = p->bad_while_ns && p->bad == p->entry.incarnation;
	int64_t pause = again ? 2 * p->bad_while_ns : first_while;

	p->bad = p->entry.incarnation;
	p->bad_while_ns = pause < most_while ? pause : most_while;
	p->bad_until_ns = time_mono_ns() + p->bad_while_ns;
}

bool unit_distrusts(const struct unit *u, const struct meet_entry *e)
{
	const struct unit_peer *p = &u->peer[e->rank];

	return p->bad_while_ns && p->bad == e->incarnation && time_mono_ns() < p->bad_until_ns;
}

struct blame { struct unit *u; size_t who; const char *why; bool done; };

/* What was queued for it has left meanwhile.  b is gone once the lock is. */
static void drop_here(void *arg)
{
	struct blame *b = arg;
	struct unit *u = b->u;

	pthread_mutex_lock(&u->lock);
	if (!ranks_has(&u->m.connected, b->who))
		mesh_drop(u->mesh, b->who);
	b->done = true;
	pthread_cond_broadcast(&u->cond);
	pthread_mutex_unlock(&u->lock);
}

/* It is told that it is out, and the others what this rank proposes, before its connection is closed: it gives up by
 * itself then.  Else it would take this rank for the one that has gone, and the others might hear that first. */
static void lose_told(struct unit *u, size_t who)
{
	struct member_set without = u->m.want;

	ranks_del(&without.ranks, who);
	if (without.epoch <= u->m.now.epoch)
		without.epoch = u->m.now.epoch + 1;
	unit_member_ops.tell(u, who, &without);
	u->peer[who].plan_sent = 0;
	member_lost(&u->m, who);
	unit_after(u);
}

static void blame_here(void *arg)
{
	struct blame *b = arg;
	struct unit *u = b->u;
	struct ds_err err;

	pthread_mutex_lock(&u->lock);
	/* Else it is out already, or this is another epoch, in which it may be another process. */
	if (u->m.now.epoch == u->epoch && ranks_has(&u->m.want.ranks, b->who)) {
		log_msg(LOG_INFO, "unit: rank %zu: %s", b->who, b->why);
		snprintf(u->peer[b->who].why, sizeof(u->peer[b->who].why), "%.90s", b->why);
		unit_distrust(u, b->who);
		lose_told(u, b->who);
	}
	pthread_mutex_unlock(&u->lock);
	if (mesh_call(u->mesh, drop_here, b, &err))
		drop_here(b);
}

int unit_blame(struct unit *u, size_t rank, struct ds_err *err)
{
	struct ds_err why = *err;
	struct blame b = { .u = u, .who = rank, .why = why.text };

	if (rank == u->c.rank)
		return err_set(err, DS_BUG, "rank %zu, this one: %s", rank, why.text);
	if (mesh_call(u->mesh, blame_here, &b, err))
		return err->code;
	pthread_mutex_lock(&u->lock);
	while (!b.done)
		pthread_cond_wait(&u->cond, &u->lock);
	pthread_mutex_unlock(&u->lock);
	return EP_BROKEN;
}
