#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "serve/ranked_impl.h"
#include "serve/unit_options.h"

/* Waits are short while all compute, and to wake a sleeper costs who wakes it tens of microseconds.  Not where threads
 * outnumber processors, nor over tcp, where the thread that brings the message needs one. */
#define SPIN_NS ((int64_t)100000)

/* ---- meeting ---- */

enum { TERMS = 5 };

static void term(struct unit_term *t, const char *name, const char *value)
{
	snprintf(t->name, sizeof(t->name), "%s", name);
	snprintf(t->value, sizeof(t->value), "%s", value);
}

/* What would change bits, or make no sense, if ranks differed in it. */
static int set_terms(const struct work *w, const struct work_options *o, const char *role, struct unit_term *t,
	struct ds_err *err)
{
	struct kern_stream *s;
	int rc = kern_stream_new(&s, 1, NULL, err);

	if (rc)
		return rc;
	term(&t[0], "role", role);
	term(&t[1], "model", w->model->fingerprint);
	term(&t[2], "arith", o->arith);
	term(&t[3], "kernels", kern_set_name(s));
	term(&t[4], "mtp", o->mtp ? "yes" : "no");
	kern_stream_free(s);
	return 0;
}

static bool over_tcp(const struct unit_options *u)
{
	return u->transport ? strcmp(u->transport, "tcp") == 0 : strncmp(u->me.unit, "unix:", 5) != 0;
}

static int64_t spin_ns(const struct unit_options *u, size_t threads)
{
	return !over_tcp(u) && u->me.world * threads <= (size_t)work_cpus() ? SPIN_NS : 0;
}

int ranked_open(struct work *w, const struct work_options *o, bool anywhere, const char *role, struct engine_config *c,
	struct ds_err *err)
{
	const struct unit_options *u = &o->unit;
	struct unit_term terms[TERMS];
	struct ep_config e = { .redundant = (size_t)u->redundant, .tokens = (size_t)u->dispatch_tokens,
		.unit = { .addr = u->me.unit, .anywhere = anywhere, .rank = u->me.rank, .world = u->me.world,
			.unit_timeout_ns = u->unit_timeout_ns, .peer_timeout_ns = u->peer_timeout_ns,
			.transport = u->transport, .link = { u->link_delay_ns, u->link_rate }, .terms = terms,
			.term_count = TERMS,
			.spin_ns = spin_ns(u, (size_t)c->threads) } };
	struct ranked *r;
	int rc = set_terms(w, o, role, terms, err);

	if (rc)
		return rc;
	if (!w->model->config.experts)
		return err_set(err, DS_CONFIG, "--unit: '%s' has no experts that ranks could share", o->model);
	r = mem_calloc(1, sizeof(*r));
	if (!r)
		return err_nomem(err, sizeof(*r), "a rank");
	r->o = u;
	r->rank = u->me.rank;
	r->world = u->me.world;
	r->watch = r->timer = -1;
	engine_ep_shape(w->model, c, &e.shape);
	rc = ep_open(&r->ep, &e, err);
	if (!rc)
		rc = loads_new(r, err);
	w->ranked = r;
	if (rc)
		return rc; /* work_close sees to the rest */
	c->ep = r->ep;
	c->micro_batches = u->micro_batches ? (size_t)u->micro_batches : over_tcp(u) + 1U;
	return 0;
}

void ranked_close(struct work *w)
{
	struct ranked *r = w->ranked;

	if (!r)
		return;
	loads_free(r);
	ep_close(r->ep);
	free(r);
	w->ranked = NULL;
}

/* ---- steps ---- */

/* A plan may come in at any rank: there it is news, elsewhere a detail. */
static void tell_plan(struct ranked *r)
{
	uint64_t id;
	int64_t pause;

	unit_planned(ep_unit(r->ep), &id, &pause);
	if (id == r->planned)
		return;
	r->planned = id;
	log_msg(id == r->offered ? LOG_WARN : LOG_INFO, "plan %llu is in effect; steps paused for %.1f ms",
		(unsigned long long)ep_plan_number(r->ep), (double)pause / 1e6);
}

static void stepped(struct ranked *r, bool worked)
{
	tell_plan(r);
	loads_step(r, worked);
}

int ranked_step(struct work *w, bool *busy, struct ds_err *err)
{
	int rc = 0;

	if (!w->ranked)
		return 0;
	if (!*busy)
		rc = engine_attend(w->engine, busy, err);
	stepped(w->ranked, *busy);
	return rc;
}

int ranked_bell(const struct work *w)
{
	return !w->ranked ? -1 : w->ranked->watch >= 0 ? w->ranked->watch : ep_bell_fd(w->ranked->ep);
}

static int offer_plan(struct ranked *r, const struct source *src, const struct frame *f, struct ds_err *err)
{
	uint64_t id, number;

	if (ep_plan(r->ep, f, &id, &number, err))
		return err_prefix(err, "'%s'", source_name(src));
	if (id)
		r->offered = id;
	else
		log_msg(LOG_WARN, "'%s': plan %llu is left out: plan %llu is in effect; give a later plan a greater "
			"number", source_name(src), (unsigned long long)number,
			(unsigned long long)ep_plan_number(r->ep));
	return 0;
}

int ranked_frame(struct work *w, struct source *src, const struct frame *f, bool *taken, struct ds_err *err)
{
	struct ranked *r = w->ranked;

	*taken = r && f->type == FRAME_PLAN;
	if (r && r->o->loads)
		r->src = src;
	if (!*taken)
		return 0;
	return offer_plan(r, src, f, err);
}

void ranked_ending(struct work *w, struct source *src)
{
	if (w->ranked && w->ranked->o->loads) {
		w->ranked->src = src;
		loads_last(w->ranked);
	}
}

void ranked_gone(struct work *w, const struct source *src)
{
	if (w->ranked && w->ranked->src == src)
		w->ranked->src = NULL;
}

/* ---- around the run ---- */

int ranked_begin(struct work *w, const struct stage_config *stage, struct ds_err *err)
{
	return w->ranked ? loads_open(w, stage, err) : 0;
}

/* What failed were requests, or part of the input: that is answered, and no reason to leave the others. */
static bool done(int rc)
{
	return rc == 0 || rc == DS_DATA || rc == DS_CONFIG || rc == DS_TEMP;
}

static int stay(struct work *w, struct ds_err *err)
{
	struct pollfd bell = { .fd = ranked_bell(w), .events = POLLIN };
	bool busy, over = false;
	int rc = 0;

	while (!rc && !over) {
		rc = engine_stay_step(w->engine, &busy, &over, err);
		stepped(w->ranked, busy);
		if (!rc && !over && !busy && poll(&bell, 1, -1) < 0 && errno != EINTR)
			rc = err_errno(err, DS_OS, "cannot poll");
	}
	return rc;
}

/* All that goes to standard output is written: who reads it need not wait for the rest of the unit. */
static void release_output(const struct work *w, const struct stage_options *io)
{
	bool ours = !w->dump && !w->ranked->to_open && (!io->output || strcmp(io->output, "-") == 0);
	int null = ours ? open("/dev/null", O_WRONLY | O_CLOEXEC) : -1;

	if (null >= 0) {
		dup2(null, STDOUT_FILENO);
		close(null);
	}
}

/* Another thing that went wrong, or not: the first one is the run's, the others are said at once. */
static int also(int rc, struct ds_err *err, int more, const struct ds_err *why)
{
	if (more && rc)
		log_err(why);
	else if (more)
		*err = *why;
	return rc ? rc : more;
}

int ranked_finish(struct work *w, const struct stage_config *stage, int rc, struct ds_err *err)
{
	bool service = stage->opt.listen && !stage->opt.output;
	struct ranked *r = w->ranked;
	struct ds_err why;

	if (!r)
		return rc;
	if (!service && done(rc)) {
		release_output(w, &stage->opt);
		rc = also(rc, err, stay(w, &why), &why);
	}
	if (r->to_open) {
		loads_last(r);
		rc = also(rc, err, loads_close(r, &why), &why);
	}
	return rc;
}

void ranked_state(const struct work *w, struct jw *out)
{
	struct ranked *r = w->ranked;
	struct unit_stat s;

	if (!r)
		return;
	unit_stat(ep_unit(r->ep), &s);
	jw_key(out, "unit");
	jw_obj(out);
	jw_put_uint(out, "rank", r->rank);
	jw_put_uint(out, "world", r->world);
	jw_put_str(out, "transport", over_tcp(r->o) ? "tcp" : "shm");
	jw_key(out, "members");
	jw_arr(out);
	for (size_t i = ranks_next(&s.members, 0); i < r->world; i = ranks_next(&s.members, i + 1))
		jw_uint(out, i);
	jw_arr_end(out);
	jw_put_uint(out, "epoch", s.epoch);
	jw_put_uint(out, "plan", ep_plan_number(r->ep));
	jw_put_uint(out, "losses", s.losses);
	jw_put_uint(out, "joins", s.joins);
	jw_obj_end(out);
}

void ranked_hello(const struct work *w, struct hello *h)
{
	h->rank = w->ranked ? w->ranked->rank : 0;
	h->world = w->ranked ? w->ranked->world : 1;
}
