/* What the agreement asks for, and what follows when the members of a unit have changed. */
#include "ep/unit_impl.h"

#include <stdio.h>

#include "base/log.h"
#include "base/time.h"

static void send_to(struct unit *u, size_t to, enum unit_msg type, const void *data, size_t n)
{
	struct ds_err err;

	if (mesh_send(u->mesh, to, type, data, n, NULL, 0, &err))
		log_err(&err);
}

static void send_members(struct unit *u, enum unit_msg type, const void *data, size_t n)
{
	const struct ranks *s = &u->m.now.ranks;

	for (size_t r = ranks_next(s, 0); r < u->c.world; r = ranks_next(s, r + 1))
		if (r != u->c.rank)
			send_to(u, r, type, data, n);
}

/* ---- the agreement's callbacks: they leave the rest to unit_after ---- */

static void op_tell(void *ctx, size_t to, const struct member_set *what)
{
	struct msg_propose msg = { .set = *what };
	struct unit *u = ctx;

	for (size_t r = 0; r < u->c.world; r++)
		if (u->peer[r].left && !ranks_has(&what->ranks, r))
			ranks_add(&msg.left, r);
	send_to(ctx, to, UNIT_PROPOSE, &msg, sizeof(msg));
}

static void op_drop(void *ctx, size_t who)
{
	struct unit *u = ctx;

	mesh_drop(u->mesh, who);
	u->peer[who].plan_sent = 0;
}

static void op_installed(void *ctx) { ((struct unit *)ctx)->installed = true; }
static void op_outside(void *ctx) { ((struct unit *)ctx)->outside = true; }
static void op_excluded(void *ctx) { ((struct unit *)ctx)->excluded = true; }

const struct member_ops unit_member_ops = { op_tell, op_drop, op_installed, op_outside, op_excluded };

/* ---- what follows ---- */

void unit_tell_news(struct unit *u)
{
	u->news = true;
	pthread_cond_broadcast(&u->cond);
	transport_ring(u->transport);
}

void unit_fail(struct unit *u, const struct ds_err *why)
{
	if (u->failed || !u->opening)
		return;
	u->failed = true;
	u->why = *why;
	pthread_cond_broadcast(&u->cond);
}

void unit_say_newcomer(struct unit *u)
{
	struct msg_newcomer msg = { .floor = member_floor(&u->m), .connected = u->m.connected };

	for (size_t r = 0; r < u->c.world; r++)
		if (u->peer[r].connecting >= 0)
			return; /* not yet */
	unit_plan_ids(u, msg.plans);
	for (size_t r = ranks_next(&u->m.connected, 0); r < u->c.world; r = ranks_next(&u->m.connected, r + 1))
		if (r != u->c.rank)
			send_to(u, r, UNIT_NEWCOMER, &msg, sizeof(msg));
}

/* Members tell a newcomer of those members that it is not connected to. */
static void tell_members(struct unit *u, size_t to)
{
	struct ranks rest = ranks_minus(&u->m.now.ranks, &u->peer[to].said.connected);
	struct meet_table *t;
	size_t n;

	if (ranks_count(&rest) == 0)
		return;
	t = unit_table(u, &n);
	if (t)
		send_to(u, to, UNIT_MEMBERS, t, n);
	free(t);
}

/* Most of the unit has gone, as this rank sees it: it is this rank, rather, that was cut off. */
static bool minority(const struct unit *u)
{
	size_t now = ranks_count(&u->m.now.ranks), last = ranks_count(&u->last);

	return 2 * now < last || (2 * now == last && !ranks_has(&u->m.now.ranks, ranks_next(&u->last, 0)));
}

void unit_tell_holder(struct unit *u)
{
	struct msg_holder msg = { .holds = u->door != NULL };

	send_members(u, UNIT_HOLDER, &msg, sizeof(msg));
}

/* Where nobody of the unit holds the address its lowest rank seeks it. */
static void seek_if_lost(struct unit *u)
{
	const struct ranks *now = &u->m.now.ranks;

	if (u->door || u->m.newcomer)
		return;
	if (u->holder < u->c.world && !ranks_has(now, u->holder))
		u->holder = UNIT_NOBODY;
	if (u->holder == UNIT_NOBODY && ranks_next(now, 0) == u->c.rank && !u->over)
		unit_seek(u, 0);
	else
		unit_seek_stop(u);
}

static void settle_address(struct unit *u)
{
	bool held = u->door != NULL;

	if (u->door && u->minor)
		unit_door_close(u);
	if (held)
		unit_tell_holder(u);
	seek_if_lost(u);
}

static void count_changes(struct unit *u)
{
	struct ranks gone = ranks_minus(&u->last, &u->m.now.ranks), come = ranks_minus(&u->m.now.ranks, &u->last);
	bool lost = false;

	for (size_t r = ranks_next(&gone, 0); r < u->c.world; r = ranks_next(&gone, r + 1)) {
		ranks_add(u->peer[r].left ? &u->gone_quietly : &u->gone, r);
		u->stat.losses += !u->peer[r].left;
		lost |= !u->peer[r].left;
	}
	for (size_t r = ranks_next(&come, 0); r < u->c.world; r = ranks_next(&come, r + 1)) {
		u->peer[r].left = u->peer[r].finished = false;
		u->peer[r].why[0] = '\0';
	}
	if (lost)
		u->minor = minority(u);
	else if (ranks_count(&come))
		u->minor = false;
	if (u->m.now.epoch > 1 && !u->opening) {
		u->stat.joins += ranks_count(&come);
		u->come = ranks_either(&u->come, &come);
	}
}

static void when_installed(struct unit *u)
{
	u->connect_due_ns = 0;
	count_changes(u);
	u->last = u->m.now.ranks;
	settle_address(u);
	for (size_t r = ranks_next(&u->m.newcomers, 0); r < u->c.world; r = ranks_next(&u->m.newcomers, r + 1)) {
		tell_members(u, r);
		unit_plan_feed(u, r);
	}
	unit_door_review(u);
}

void unit_expect(struct unit *u)
{
	struct ranks who = { { 0 } };

	if (u->m.newcomer)
		who = u->m.connected;
	else if (u->opening || u->settling)
		who = member_missing(&u->m);
	who = ranks_both(&who, &u->m.connected);
	ranks_del(&who, u->c.rank);
	if (ranks_equal(&who, &u->expected))
		return;
	u->expected = who;
	mesh_expect(u->mesh, MESH_ASK_UNIT, &who);
}

/* Something has changed before this rank saw that the unit is over: those who saw it will not vote again. */
static void lose_finished(struct unit *u)
{
	for (size_t r = 0; r < u->c.world; r++) {
		if (!u->peer[r].finished)
			continue;
		u->peer[r].finished = false;
		u->peer[r].left = true;
		unit_lose(u, r);
	}
}

static void after_events(struct unit *u)
{
	bool changed = u->installed;

	while (u->installed) { /* what follows may install another */
		u->installed = false;
		when_installed(u);
	}
	if (u->excluded) {
		u->excluded = false;
		unit_stop_connecting(u);
		unit_seek(u, 100 * UNIT_MS);
	}
	if (u->outside && u->m.newcomer)
		unit_say_newcomer(u);
	u->outside = false;
	if (u->m.begun && u->m.want.epoch > u->broken) {
		u->broken = u->m.want.epoch;
		transport_break(u->transport, u->broken);
		if (!u->noticed_ns)
			u->noticed_ns = time_mono_ns();
		changed = true;
	}
	if (changed)
		unit_tell_news(u);
	unit_expect(u);
	unit_timers(u);
}

void unit_after(struct unit *u)
{
	if (member_changing(&u->m) || u->installed)
		lose_finished(u);
	after_events(u);
}

void unit_lose(struct unit *u, size_t who)
{
	mesh_drop(u->mesh, who);
	u->peer[who].plan_sent = 0;
	member_lost(&u->m, who);
}

/* ---- what the mesh tells ---- */

static bool in_world(const struct unit *u, const struct ranks *s)
{
	return ranks_next(s, u->c.world) == EP_MAX_WORLD;
}

static void newcomer_in(struct unit *u, size_t from, const struct msg_newcomer *msg)
{
	if (!in_world(u, &msg->connected) || unit_epoch_far(u->m.now.epoch, msg->floor))
		return;
	u->peer[from].said = *msg;
	member_newcomer(&u->m, from, msg->floor);
	if (!ranks_has(&u->m.newcomers, from))
		return;
	tell_members(u, from);
	unit_plan_feed(u, from);
	unit_tell_news(u);
}

static void propose_in(struct unit *u, size_t from, const struct msg_propose *msg)
{
	if (!in_world(u, &msg->set.ranks) || !in_world(u, &msg->left))
		return;
	for (size_t r = ranks_next(&msg->left, 0); r < u->c.world; r = ranks_next(&msg->left, r + 1))
		u->peer[r].left = true;
	member_hear(&u->m, from, &msg->set);
}

static void leave_in(struct unit *u, size_t from, const struct msg_leave *msg)
{
	if (msg->over) {
		u->peer[from].finished = true; /* this rank will see so, too, where nothing changes until then */
		pthread_cond_broadcast(&u->cond);
		return;
	}
	u->peer[from].left = true;
	unit_lose(u, from);
}

static void holder_in(struct unit *u, size_t from, const struct msg_holder *msg)
{
	if (u->door || (!ranks_has(&u->m.now.ranks, from) && !ranks_has(&u->m.want.ranks, from)))
		return;
	if (msg->holds)
		u->holder = from;
	else if (u->holder == from)
		u->holder = UNIT_NOBODY;
	else
		return;
	if (u->m.now.epoch)
		seek_if_lost(u);
}

static void message(struct unit *u, size_t from, unsigned type, const void *data, size_t n)
{
	if (type == UNIT_PROPOSE && n == sizeof(struct msg_propose)) {
		propose_in(u, from, data);
	} else if (type == UNIT_NEWCOMER && n == sizeof(struct msg_newcomer)) {
		newcomer_in(u, from, data);
	} else if (type == UNIT_MEMBERS && meet_table_ok(data, n, u->c.world)) {
		unit_more_members(u, data);
	} else if (type == UNIT_PLAN) {
		unit_plan_in(u, from, data, n);
	} else if (type == UNIT_NO_PLAN && n == sizeof(uint64_t)) {
		unit_plan_refused(u, *(const uint64_t *)data);
	} else if (type == UNIT_LEAVE && n == sizeof(struct msg_leave)) {
		leave_in(u, from, data);
	} else if (type == UNIT_HOLDER && n == sizeof(struct msg_holder)) {
		holder_in(u, from, data);
	}
}

static void on_message(void *ctx, size_t from, unsigned type, const void *data, size_t n, const int *fds,
	size_t fd_count)
{
	struct unit *u = ctx;

	if (type >= MESH_TRANSPORT_FIRST && type <= MESH_TRANSPORT_LAST) {
		transport_message_in(u->transport, from, type, data, n, fds, fd_count);
		return;
	}
	for (size_t i = 0; i < fd_count; i++)
		close(fds[i]);
	pthread_mutex_lock(&u->lock);
	if (ranks_has(&u->m.connected, from)) {
		message(u, from, type, data, n);
		unit_after(u);
	}
	pthread_mutex_unlock(&u->lock);
}

static void *on_put(void *ctx, size_t from, const struct mesh_put *h)
{
	return transport_put_in(((struct unit *)ctx)->transport, from, h);
}

static void on_put_done(void *ctx, size_t from, const struct mesh_put *h)
{
	transport_put_done(((struct unit *)ctx)->transport, from, h);
}

static void on_lost(void *ctx, size_t from, const struct ds_err *why)
{
	struct unit *u = ctx;

	pthread_mutex_lock(&u->lock);
	if (!u->closing && !u->peer[from].finished && !u->peer[from].left) /* who has left, or is left, is not missed */
		log_msg(LOG_INFO, "unit: rank %zu: %s", from, why->text);
	snprintf(u->peer[from].why, sizeof(u->peer[from].why), "%.90s", why->text);
	if (why->code == DS_PROTO)
		unit_distrust(u, from);
	unit_lose(u, from);
	unit_after(u);
	pthread_mutex_unlock(&u->lock);
}

void unit_timers(struct unit *u)
{
	int64_t due = u->seek.state == SEEK_PAUSE || u->seek.state == SEEK_ASKED ? u->seek.due_ns : 0;

	if (u->connect_due_ns && (!due || u->connect_due_ns < due))
		due = u->connect_due_ns;
	if (u->accept_due_ns && (!due || u->accept_due_ns < due))
		due = u->accept_due_ns;
	if (due == u->timer_ns)
		return;
	u->timer_ns = due;
	mesh_timer(u->mesh, due);
}

/* A unit that begins goes on without those that did not connect. */
static void connect_late(struct unit *u)
{
	struct ranks rest = ranks_minus(&u->m.want.ranks, &u->m.connected);

	u->connect_due_ns = 0;
	for (size_t r = ranks_next(&rest, 0); r < u->c.world; r = ranks_next(&rest, r + 1))
		unit_lose(u, r);
}

static void on_timer(void *ctx)
{
	struct unit *u = ctx;
	int64_t now = time_mono_ns();

	pthread_mutex_lock(&u->lock);
	u->timer_ns = 0;
	if (u->connect_due_ns && now >= u->connect_due_ns)
		connect_late(u);
	if (u->accept_due_ns && now >= u->accept_due_ns)
		unit_accept_again(u);
	unit_seek_timer(u, now);
	unit_after(u);
	pthread_mutex_unlock(&u->lock);
}

const struct mesh_ops unit_mesh_ops = { on_message, on_put, on_put_done, on_lost, on_timer };

/* ---- what is said of it ---- */

/* " (silent for 5.0 s)", where this rank knows it and it is the same of all. */
static const char *why_gone(const struct unit *u, const struct ranks *who, char *text, size_t cap)
{
	const char *first = NULL;

	for (size_t r = ranks_next(who, 0); r < u->c.world; r = ranks_next(who, r + 1)) {
		if (first && strcmp(first, u->peer[r].why))
			return "";
		first = u->peer[r].why;
	}
	if (!first || !*first)
		return "";
	snprintf(text, cap, " (%s)", first);
	return text;
}

static void say(struct buf *b, const struct ranks *who, const char *what, const char *why)
{
	char names[600];

	if (ranks_count(who) == 0)
		return;
	meet_names(who, names, sizeof(names));
	buf_printf(b, "%s%s %s %s%s", b->len ? ", " : "", names, ranks_count(who) == 1 ? "has" : "have", what, why);
}

void unit_tell_changes(struct unit *u, int64_t took_ns)
{
	struct ranks back = ranks_both(&u->gone, &u->come);
	struct ranks gone = ranks_minus(&u->gone, &back), come = ranks_minus(&u->come, &back);
	struct ranks again = ranks_minus(&back, &u->m.now.ranks);
	size_t n = ranks_count(&u->m.now.ranks);
	struct buf b = { 0 };
	char why[110];

	say(&b, &gone, "gone", why_gone(u, &gone, why, sizeof(why)));
	say(&b, &u->gone_quietly, "left", "");
	back = ranks_minus(&back, &again);
	say(&b, &back, "gone and come back", "");
	say(&b, &again, "come and gone again", why_gone(u, &again, why, sizeof(why)));
	say(&b, &come, "come", "");
	if (b.len && !b.nomem)
		log_msg(LOG_WARN, "unit: %s; %zu rank%s go%s on, epoch %llu, %.1f ms", (const char *)b.p, n, plural(n),
			n == 1 ? "es" : "", (unsigned long long)u->epoch, (double)took_ns / 1e6);
	buf_free(&b);
	memset(&u->gone, 0, sizeof(u->gone));
	memset(&u->gone_quietly, 0, sizeof(u->gone_quietly));
	memset(&u->come, 0, sizeof(u->come));
}
