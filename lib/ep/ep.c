/* A rank's unit with its placement, and the steps of it. */
#include "ep/ep.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "ep/ep_impl.h"

enum { OWN_TERMS = 3 };

/* ---- plans ---- */

static struct plan_shape plan_shape(const struct ep *ep)
{
	return (struct plan_shape){ ep->c.shape.layers, ep->c.shape.experts, ep->c.unit.world };
}

/* On the mesh's thread. */
static int prepare(void *ctx, uint64_t id, const void *plan, size_t n, struct ds_err *err)
{
	struct ep *ep = ctx;
	struct plan_shape shape = plan_shape(ep);
	struct placement *p;
	uint64_t number;
	int rc = plan_unpack(plan, n, &shape, &p, &number, err);

	(void)id;
	placement_free(p);
	return rc;
}

/* The placement of all ranks: a plan's, or where it has no bytes the one that the unit begins with. */
static int set_whole(struct ep *ep, const void *plan, size_t n, struct ds_err *err)
{
	const struct ep_shape *s = &ep->c.shape;
	struct plan_shape shape = plan_shape(ep);
	struct placement *whole;
	uint64_t number = 0;
	int rc;

	if (n)
		rc = plan_unpack(plan, n, &shape, &whole, &number, err);
	else
		rc = placement_default(&whole, s->layers, s->experts, ep->c.redundant, ep->c.unit.world, err);
	if (rc)
		return rc;
	placement_free(ep->whole);
	ep->whole = whole;
	ep->number = number;
	return 0;
}

/* The plan in effect, without those that are not there. */
static int placed(void *ctx, uint64_t id, const void *plan, size_t n, const struct ranks *members, struct ds_err *err)
{
	struct ep *ep = ctx;
	struct placement *place;
	int rc = ep->whole && id == ep->plan ? 0 : set_whole(ep, plan, n, err);

	if (!rc)
		rc = placement_without(&place, ep->whole, members, err);
	if (rc)
		return rc;
	ep->plan = id;
	rc = exchange_place(ep, place, err);
	if (rc) {
		placement_free(place);
		return rc;
	}
	placement_free(ep->place);
	ep->place = place;
	return 0;
}

uint64_t ep_plan_number(const struct ep *ep)
{
	return ep->number;
}

int ep_plan(struct ep *ep, const struct frame *f, uint64_t *id, uint64_t *number, struct ds_err *err)
{
	struct plan_shape shape = plan_shape(ep);
	struct placement *p = NULL;
	void *bytes = NULL;
	size_t n;
	int rc = plan_placement(f, &shape, &p, number, err);

	*id = 0;
	if (!rc && *number > ep->number)
		rc = plan_pack(f, &bytes, &n, err);
	if (bytes)
		rc = unit_offer(ep->unit, bytes, n, id, err);
	free(bytes);
	placement_free(p);
	return rc;
}

static const struct unit_ops ops = { .prepare = prepare, .placed = placed };

static struct unit_term *term(struct unit_term *t, const char *name, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static struct unit_term *term(struct unit_term *t, const char *name, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	snprintf(t->name, sizeof(t->name), "%s", name);
	vsnprintf(t->value, sizeof(t->value), fmt, ap);
	va_end(ap);
	return t + 1;
}

/* The caller's terms, and what dispatch and combine rest on. */
static int meet(struct ep *ep, struct ds_err *err)
{
	const struct ep_shape *s = &ep->c.shape;
	struct unit_config u = ep->c.unit;
	struct unit_term *terms = mem_array(u.term_count + OWN_TERMS, sizeof(*terms)), *t;
	int rc;

	if (!terms)
		return err_nomem(err, (u.term_count + OWN_TERMS) * sizeof(*terms), "what ranks must agree in");
	if (u.term_count)
		memcpy(terms, u.terms, u.term_count * sizeof(*terms));
	t = term(terms + u.term_count, "redundant", "%zu", ep->c.redundant);
	t = term(t, "dispatch-tokens", "%zu", ep->c.tokens);
	t = term(t, "shape", "%zu layers, %zu experts, top %zu, rows of %zu and %zu bytes", s->layers, s->experts,
		s->top_k, s->row_bytes, s->out_bytes);
	u.terms = terms;
	u.term_count += OWN_TERMS;
	u.ops = &ops;
	u.ctx = ep;
	u.bytes[SLOT_DISPATCH] = exchange_dispatch_bytes(&ep->c);
	u.bytes[SLOT_COMBINE] = exchange_combine_bytes(&ep->c);
	rc = unit_open(&ep->unit, &u, err);
	free(terms);
	return rc;
}

int ep_open(struct ep **out, const struct ep_config *c, struct ds_err *err)
{
	struct load_config load = { .rank = c->unit.rank, .world = c->unit.world, .layer = c->shape.first,
		.layers = c->shape.layers, .experts = c->shape.experts };
	struct ep *ep = mem_calloc(1, sizeof(*ep));
	int rc;

	if (!ep)
		return err_nomem(err, sizeof(*ep), "expert parallelism");
	ep->c = *c;
	rc = set_whole(ep, NULL, 0, err);
	if (!rc)
		rc = load_new(&ep->load, &load, err);
	if (!rc)
		rc = exchange_reserve(ep, err);
	if (!rc)
		rc = meet(ep, err);
	if (rc) {
		ep_close(ep);
		return rc;
	}
	*out = ep;
	return 0;
}

void ep_close(struct ep *ep)
{
	if (!ep)
		return;
	if (ep->unit)
		unit_close(ep->unit);
	if (ep->memory)
		munmap(ep->memory, ep->memory_bytes);
	placement_free(ep->place);
	placement_free(ep->whole);
	load_free(ep->load);
	free(ep->counts);
	free(ep);
}

/* Rounds that the largest batch of any member takes. */
static size_t rounds(const struct ep *ep, size_t lane)
{
	const struct ranks *members = &ep->step.members;
	size_t most = 0;

	for (size_t r = ranks_next(members, 0); r < EP_MAX_WORLD; r = ranks_next(members, r + 1))
		if (ep->step.rows[r][lane] > most)
			most = ep->step.rows[r][lane];
	return (most + ep->c.tokens - 1) / ep->c.tokens;
}

/* The last step is over: it counts, unless it was broken off. */
static void settle(struct ep *ep)
{
	const uint32_t *rows = ep->step.rows ? ep->step.rows[ep->c.unit.rank] : NULL;

	if (ep->stepping && ep->broken)
		load_undo(ep->load);
	else if (ep->stepping)
		load_step(ep->load, rows[0] + rows[1]);
	ep->stepping = ep->broken = false;
}

void ep_load(struct ep *ep, struct load_message *m)
{
	struct unit_stat now;

	settle(ep);
	unit_stat(ep->unit, &now);
	for (size_t r = 0; r < ep->c.unit.world; r++) {
		struct transport_peer peer;

		transport_stat(unit_transport(ep->unit), r, &peer);
		load_peer(ep->load, r, &peer);
	}
	load_take(ep->load, now.epoch, ep->number, m);
}

int ep_begin(struct ep *ep, enum unit_kind want, const size_t rows[EP_LANES], bool ended, struct ep_step *step,
	struct ds_err *err)
{
	struct unit_vote mine = { .kind = want, .ended = ended };
	int rc;

	settle(ep);
	for (size_t i = 0; i < EP_LANES; i++)
		mine.rows[i] = (uint32_t)rows[i];
	rc = unit_vote(ep->unit, &mine, &ep->step, err);
	if (rc)
		return rc;
	exchange_reset(ep);
	ep->stepping = ep->step.kind != UNIT_NONE;
	*step = (struct ep_step){ .kind = ep->step.kind, .lanes = ep->step.lanes, .over = ep->step.over };
	for (size_t i = 0; i < EP_LANES; i++)
		step->rounds[i] = ep->rounds[i] = rounds(ep, i);
	return 0;
}

size_t ep_tokens(const struct ep *ep) { return ep->c.tokens; }
size_t ep_world(const struct ep *ep) { return ep->c.unit.world; }
void ep_linger(struct ep *ep) { unit_linger(ep->unit); }
bool ep_park(struct ep *ep, bool on) { return unit_park(ep->unit, on); }
int ep_bell_fd(const struct ep *ep) { return unit_bell_fd(ep->unit); }
struct unit *ep_unit(struct ep *ep) { return ep->unit; }
