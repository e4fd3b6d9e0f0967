/*
 * Votes: every member says the same to all, all draw the same conclusions.  What has to happen between the same two
 * steps on all ranks (a plan, a newcomer, the end) is decided here.
 */
#include "ep/unit_impl.h"

#include "base/time.h"

static void forget_seqs(struct unit *u)
{
	memset(u->seq, 0, sizeof(u->seq));
	u->turn = 0;
}

/* The caller's state follows what is installed. */
static int place(struct unit *u, const struct ranks *members, uint64_t id, struct ds_err *err)
{
	const struct unit_plan *p;
	int rc;

	if (u->placed && u->placed_plan == id && ranks_equal(&u->placed_ranks, members))
		return 0;
	pthread_mutex_lock(&u->lock);
	p = id ? unit_plan_find(u, id) : NULL;
	pthread_mutex_unlock(&u->lock);
	if (id && !p)
		return err_set(err, DS_BUG, "plan %llu is in effect, and this rank does not have it",
			(unsigned long long)id >> 32);
	rc = u->c.ops->placed(u->c.ctx, id, p ? p->bytes : NULL, p ? p->total : 0, members, err);
	u->placed = true;
	u->placed_plan = id;
	u->placed_ranks = *members;
	return rc;
}

/* Until transport and caller are in the epoch that is installed. */
static int settle(struct unit *u, struct ds_err *err)
{
	struct member_set now;
	int rc = 0;

	pthread_mutex_lock(&u->lock);
	u->settling = true;
	for (;;) {
		unit_expect(u);
		if (member_changing(&u->m)) {
			pthread_cond_wait(&u->cond, &u->lock);
			continue;
		}
		now = u->m.now;
		if (u->epoch == now.epoch)
			break;
		pthread_mutex_unlock(&u->lock);
		rc = transport_epoch(u->transport, now.epoch, &now.ranks, err);
		pthread_mutex_lock(&u->lock);
		if (rc && rc != EP_BROKEN)
			break;
		if (rc || member_changing(&u->m) || u->m.now.epoch != now.epoch)
			continue;
		u->epoch = now.epoch;
		forget_seqs(u);
	}
	u->settling = false;
	unit_expect(u);
	pthread_mutex_unlock(&u->lock);
	return rc ? rc : place(u, &now.ranks, now.plan, err);
}

/* ---- what this rank says ---- */

static bool knows_plan(const struct unit *u, const struct msg_newcomer *said)
{
	if (u->m.now.plan == 0)
		return true;
	for (size_t i = 0; i < UNIT_PLANS_TOLD; i++)
		if (said->plans[i] == u->m.now.plan)
			return true;
	return false;
}

static void add_newcomers(const struct unit *u, struct unit_ballot *b)
{
	const struct ranks *s = &u->m.newcomers;

	for (size_t r = ranks_next(s, 0); r < u->c.world; r = ranks_next(s, r + 1)) {
		const struct msg_newcomer *said = &u->peer[r].said;
		struct ranks both = ranks_both(&said->connected, &u->m.now.ranks);

		if (!ranks_equal(&both, &u->m.now.ranks) || !knows_plan(u, said))
			continue;
		ranks_add(&b->newcomers, r);
		if (said->floor > b->floor)
			b->floor = said->floor;
	}
}

static void fill(struct unit *u, const struct unit_vote *mine, struct unit_ballot *b)
{
	memset(b, 0, sizeof(*b));
	b->kind = mine->kind;
	b->ended = mine->ended;
	for (size_t l = 0; l < EP_LANES; l++)
		b->rows[l] = mine->rows[l];
	pthread_mutex_lock(&u->lock);
	u->news = false;
	u->voted = b->prepared = unit_plan_ready(u);
	add_newcomers(u, b);
	pthread_mutex_unlock(&u->lock);
}

static bool ballot_ok(const struct unit *u, const struct unit_ballot *b)
{
	bool ok = b->kind <= UNIT_MTP && b->ended <= 1;

	for (size_t l = 0; l < EP_LANES; l++)
		ok = ok && b->rows[l] <= UNIT_MOST_ROWS;
	return ok && !unit_epoch_far(u->epoch, b->floor) && !unit_plan_far(u->known, b->prepared);
}

/* What came; 0, or as unit_blame where one makes no sense: others may have had another one of that rank, and conclude
 * something else. */
static int take_ballots(struct unit *u, const struct ranks *others, size_t lane, struct ds_err *err)
{
	for (size_t r = ranks_next(others, 0); r < u->c.world; r = ranks_next(others, r + 1)) {
		struct unit_ballot *b = &u->ballots[r];
		int64_t when;
		size_t n;
		const void *p = transport_message(u->transport, r, SLOT_VOTE, lane, &n, &when);
		bool ok = n == sizeof(*b);

		if (ok) {
			memcpy(b, p, n);
			pthread_mutex_lock(&u->lock);
			ok = ballot_ok(u, b);
			pthread_mutex_unlock(&u->lock);
		}
		if (!ok) {
			err_set(err, DS_PROTO, "it sent a ballot of %zu bytes that makes no sense", n);
			return unit_blame(u, r, err);
		}
	}
	return 0;
}

/* All members' ballots into u->ballots.  0 or EP_BROKEN; DS_OS. */
static int exchange(struct unit *u, const struct ranks *members, struct ds_err *err)
{
	size_t lane = u->turn++ % EP_LANES;
	uint64_t seq = unit_seq(u, SLOT_VOTE, lane);
	struct ranks others = *members;

	ranks_del(&others, u->c.rank);
	for (size_t r = ranks_next(&others, 0); r < u->c.world; r = ranks_next(&others, r + 1)) {
		memcpy(transport_slot(u->transport, r, SLOT_VOTE, lane), &u->ballots[u->c.rank],
			sizeof(struct unit_ballot));
		transport_post(u->transport, r, SLOT_VOTE, lane, seq, sizeof(struct unit_ballot));
	}
	if (ranks_count(&others) == 0)
		return 0;
	if (transport_wait(u->transport, SLOT_VOTE, lane, seq, &others))
		return EP_BROKEN;
	return take_ballots(u, &others, lane, err);
}

/* ---- what follows from it ---- */

static void conclude(struct unit *u, const struct ranks *members, struct unit_round *round)
{
	uint32_t kind = UNIT_NONE;

	*round = (struct unit_round){ .lanes = 1, .rows = u->rows, .members = *members,
		.epoch = u->epoch, .over = true };
	for (size_t r = ranks_next(members, 0); r < u->c.world; r = ranks_next(members, r + 1)) {
		if (u->ballots[r].kind > kind && u->ballots[r].kind <= UNIT_MTP)
			kind = u->ballots[r].kind;
		round->over &= u->ballots[r].ended && u->ballots[r].kind == UNIT_NONE;
	}
	round->kind = (enum unit_kind)kind;
	memset(u->rows, 0, u->c.world * sizeof(*u->rows));
	for (size_t r = ranks_next(members, 0); r < u->c.world; r = ranks_next(members, r + 1)) {
		if (u->ballots[r].kind != kind || kind == UNIT_NONE)
			continue;
		memcpy(u->rows[r], u->ballots[r].rows, sizeof(u->rows[r]));
		if (kind == UNIT_MTP)
			u->rows[r][1] = 0;
		if (u->rows[r][1])
			round->lanes = EP_LANES;
	}
}

/* The plan that all have ready, 0: none that is new. */
static uint64_t agreed_plan(const struct unit *u, const struct ranks *members)
{
	uint64_t id = u->ballots[u->c.rank].prepared;

	for (size_t r = ranks_next(members, 0); r < u->c.world; r = ranks_next(members, r + 1))
		if (u->ballots[r].prepared != id)
			return 0;
	return id > u->m.now.plan ? id : 0;
}

/* One newcomer at a time: it has to be connected to the one before, too. */
static bool admit(struct unit *u, const struct ranks *members)
{
	struct ranks all = ranks_first(u->c.world), one = { { 0 } };
	uint64_t floor = u->m.now.epoch;
	size_t who;

	for (size_t r = ranks_next(members, 0); r < u->c.world; r = ranks_next(members, r + 1)) {
		all = ranks_both(&all, &u->ballots[r].newcomers);
		if (u->ballots[r].floor > floor)
			floor = u->ballots[r].floor;
	}
	who = ranks_next(&all, 0);
	if (who >= u->c.world)
		return false;
	ranks_add(&one, who);
	member_grow(&u->m, floor + 1, &one);
	unit_after(u);
	return true;
}

/* 0 or EP_BROKEN; *plan: takes effect now. */
static int decide(struct unit *u, const struct ranks *members, struct unit_round *round, uint64_t *plan)
{
	int rc = 0;

	*plan = 0;
	pthread_mutex_lock(&u->lock);
	if (member_changing(&u->m) || u->m.now.epoch != u->epoch) {
		rc = EP_BROKEN;
		goto out;
	}
	conclude(u, members, round);
	*plan = agreed_plan(u, members);
	if (*plan) {
		u->m.now.plan = u->m.want.plan = *plan;
		unit_plan_prune(u);
		u->news |= ranks_count(&u->m.newcomers) > 0; /* their turn is the next vote */
		for (size_t r = ranks_next(&u->m.newcomers, 0); r < u->c.world;
			r = ranks_next(&u->m.newcomers, r + 1))
			unit_plan_feed(u, r);
	} else if (admit(u, members)) {
		rc = EP_BROKEN;
		goto out;
	}
	unit_plan_heal(u, u->ballots, members);
	u->over = round->over;
	u->stat.votes++;
	if (u->noticed_ns) {
		u->stat.recovery_ns = time_mono_ns() - u->noticed_ns;
		u->noticed_ns = 0;
		unit_tell_changes(u, u->stat.recovery_ns);
	}
out:
	pthread_mutex_unlock(&u->lock);
	return rc;
}

int unit_vote(struct unit *u, const struct unit_vote *mine, struct unit_round *round, struct ds_err *err)
{
	struct ranks members;
	uint64_t plan;
	int64_t begun;
	int rc;

	for (size_t l = 0; l < EP_LANES; l++)
		if (mine->rows[l] > UNIT_MOST_ROWS)
			return err_set(err, DS_BUG, "a vote for %u rows", mine->rows[l]);
	do {
		rc = settle(u, err);
		if (rc)
			return rc;
		members = u->placed_ranks;
		fill(u, mine, &u->ballots[u->c.rank]);
		rc = exchange(u, &members, err);
		if (!rc)
			rc = decide(u, &members, round, &plan);
	} while (rc == EP_BROKEN);
	if (rc || !plan)
		return rc;
	begun = time_mono_ns();
	rc = place(u, &members, plan, err);
	u->planned_id = plan;
	u->planned_ns = time_mono_ns() - begun;
	return rc;
}

/* ---- sleeping ---- */

bool unit_park(struct unit *u, bool on)
{
	bool may;
	size_t lane = u->turn % EP_LANES;

	pthread_mutex_lock(&u->lock);
	may = on && !u->news && !member_changing(&u->m) && u->m.now.epoch == u->epoch;
	if (!on || may)
		may = transport_park(u->transport, on, lane, u->seq[SLOT_VOTE][lane] + 1);
	pthread_mutex_unlock(&u->lock);
	return on && may;
}

void unit_linger(struct unit *u)
{
	size_t lane = u->turn % EP_LANES;

	transport_linger(u->transport, lane, u->seq[SLOT_VOTE][lane] + 1);
}

int unit_bell_fd(const struct unit *u)
{
	return transport_bell_fd(u->transport);
}

struct transport *unit_transport(struct unit *u)
{
	return u->transport;
}

uint64_t unit_seq(struct unit *u, enum slot_kind kind, size_t lane)
{
	return ++u->seq[kind][lane];
}
