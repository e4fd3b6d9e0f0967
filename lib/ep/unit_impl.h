/*
 * Inside a unit.  Two threads: the compute thread (unit_vote and the rest of unit.h) and the mesh's, on which all of
 * meeting, connecting and agreeing happens.  `lock` guards all that both touch; the mesh's thread holds it in each of
 * its handlers, but not while it prepares a plan.
 */
#ifndef DS_EP_UNIT_IMPL_H
#define DS_EP_UNIT_IMPL_H

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "ep/meet.h"
#include "ep/member.h"
#include "net/addr.h"

enum { UNIT_NOBODY = EP_MAX_WORLD, UNIT_PLANS_TOLD = 8 };
#define UNIT_MS ((int64_t)1000000)

enum unit_msg { UNIT_PROPOSE = 1, UNIT_NEWCOMER, UNIT_MEMBERS, UNIT_PLAN, UNIT_NO_PLAN, UNIT_LEAVE, UNIT_HOLDER };

/* What a member says in a vote; the same bytes on all ranks. */
struct unit_ballot {
	uint32_t kind, ended;
	uint32_t rows[EP_LANES];
	uint64_t prepared;      /* the greatest plan that it could use */
	uint64_t floor;         /* the greatest that its newcomers have said */
	struct ranks newcomers; /* connected to it and to all members, and they have the plan in effect */
};

struct msg_propose { struct member_set set; struct ranks left; }; /* left: of those not in the set, by their own will */
struct msg_holder { uint64_t holds; };
struct msg_leave { uint64_t over; }; /* its unit is over; else it leaves one that goes on */
/* plans: 0 where there are fewer; connected: to whom the newcomer is. */
struct msg_newcomer { uint64_t floor, plans[UNIT_PLANS_TOLD]; struct ranks connected; };
struct msg_plan { uint64_t id, total, offset; }; /* bytes follow */

/* What is known of another rank. */
struct unit_peer {
	struct meet_entry entry;    /* where it listens; incarnation 0: unknown */
	struct msg_newcomer said;   /* as a newcomer */
	uint64_t plan_sent;         /* the greatest plan sent to it on this connection */
	bool left;                  /* it said so */
	char why[100];              /* this rank lost it; empty: others did */
	bool finished;              /* it has seen that the unit is over, and waits until all have */
	uint64_t bad;               /* the incarnation that sent what makes no sense, where bad_while_ns */
	int64_t bad_while_ns, bad_until_ns; /* how long it is not dealt with, and until when */
	int connecting;             /* the socket on which this rank connects to it; -1: none */
};

struct unit_plan {
	uint64_t id;
	uint8_t *bytes;             /* [total] */
	size_t total, got;
	bool preparing, ready, refused;
	bool own;                   /* offered by this rank, not prepared yet */
	struct unit_plan *next;
};

struct unit_door;               /* at the unit's address: who comes is let in there */

/* A rank's way to the address, where somebody else is. */
struct unit_seek {
	enum { SEEK_OFF, SEEK_PAUSE, SEEK_TRYING, SEEK_CONNECTING, SEEK_ASKED } state;
	struct unit_try *trying;    /* also one that is not waited for any more; NULL: none */
	struct meet_io io;
	int64_t pause_ns, due_ns;
	bool unanswered;            /* who holds the address has not answered */
	bool complained;
	struct ds_err why;          /* the last attempt failed */
};

struct unit {
	struct unit_config c;
	struct addr addr;
	struct unit_term *terms;
	struct mesh *mesh;
	struct transport *transport;
	pthread_mutex_t lock;
	pthread_cond_t cond;        /* something below has changed */

	/* the agreement, and what its callbacks have left to be done */
	struct member m;
	bool installed, outside, excluded;
	struct ranks last;          /* what was installed before */
	bool news;                  /* something that members should vote about */
	uint64_t broken;            /* transport_break was called with it */
	bool minor;                 /* most of the unit was lost at once: this rank was cut off, rather */
	bool settling;              /* the compute thread waits for the agreement */
	struct ranks expected;      /* mesh_expect was called with it */
	int64_t timer_ns;           /* mesh_timer was called with it */

	/* meeting */
	uint64_t nonce;
	struct meet_hello hello;    /* of this rank */
	struct unit_peer *peer;     /* [world] */
	struct unit_door *door;     /* NULL: another rank holds the address */
	size_t holder;              /* or UNIT_NOBODY */
	struct unit_seek seek;
	int listener;               /* for the other ranks */
	struct unit_guest *guests;  /* connections to it that have not said all */
	size_t guest_n;
	int64_t connect_due_ns;     /* by when a beginning unit is connected; 0: it is */
	int64_t accept_due_ns;      /* no descriptor was left to accept with: it is tried again then; 0: not so */
	bool opening, failed, closing;
	struct ds_err why;          /* of failed */

	/* plans: in effect is m.now.plan */
	struct unit_plan *plans;
	uint64_t known;             /* greatest id seen */
	uint64_t voted;             /* that was said in the last vote */

	/* the compute thread's */
	uint64_t epoch;             /* that transport and caller are in */
	struct ranks placed_ranks;
	uint64_t placed_plan;
	bool placed, over;
	uint64_t seq[SLOT_KINDS][EP_LANES], turn;
	struct unit_ballot *ballots; /* [world] of the last vote */
	uint32_t (*rows)[EP_LANES]; /* [world] */
	uint64_t planned_id;
	int64_t planned_ns;

	/* reports */
	struct unit_stat stat;
	int64_t noticed_ns;         /* a change was noticed then; 0: none since the last vote */
	struct ranks gone, gone_quietly, come;
	struct ranks began;         /* who had come when it began; empty: this rank joined one that ran */
};

/* More epochs, or plans (of which an id has the number above 32 bits), than can have been since: it makes no sense. */
static inline bool unit_epoch_far(uint64_t now, uint64_t epoch) { return epoch > now && epoch - now > UINT32_MAX; }
static inline bool unit_plan_far(uint64_t known, uint64_t id) { return id > known && (id - known) >> 32 > 1 << 20; }

/* ---- unit_change.c: the agreement's effects ---- */
extern const struct member_ops unit_member_ops;
extern const struct mesh_ops unit_mesh_ops;
void unit_after(struct unit *u);     /* whoever has touched m calls it before it unlocks */
void unit_tell_news(struct unit *u); /* to be voted about: the compute thread is woken where it sleeps */
void unit_say_newcomer(struct unit *u);
void unit_fail(struct unit *u, const struct ds_err *why); /* unit_open gives up */
void unit_lose(struct unit *u, size_t who);
void unit_timers(struct unit *u);
void unit_expect(struct unit *u);
void unit_tell_holder(struct unit *u); /* to the members: this rank holds the address */
void unit_tell_changes(struct unit *u, int64_t took_ns);

/* ---- unit_blame.c: who sends what makes no sense ---- */
void unit_distrust(struct unit *u, size_t who);     /* it did so, and is lost */
bool unit_distrusts(const struct unit *u, const struct meet_entry *e); /* this process is not to be dealt with yet */

/* ---- unit_door.c: at the unit's address ---- */
int unit_door_open(struct unit *u, int fd, struct ds_err *err);
void unit_door_close(struct unit *u);
void unit_door_review(struct unit *u);  /* the members have changed: who waited may be let in */
void unit_door_watch(struct unit *u);
void unit_door_late(struct unit *u);    /* unit_timeout has gone by */
void unit_door_refuse_all(struct unit *u, const struct ds_err *why);
struct meet_table *unit_table(struct unit *u, size_t *n); /* of this unit, for who is to join it; NULL: no memory */
void unit_table_host(struct unit *u, struct meet_table *t, int fd); /* this rank's address as fd's peer sees it */

/* ---- unit_seek.c: to the unit's address ---- */
void unit_seek(struct unit *u, int64_t pause_ns); /* tries to hold the address, or finds who does */
void unit_seek_stop(struct unit *u);
void unit_seek_quit(struct unit *u);    /* unit_timeout has gone by */
void unit_seek_timer(struct unit *u, int64_t now);
void unit_tried_here(void *u);          /* on the mesh's thread: a try has ended */

/* ---- unit_try.c: what may block ---- */
/* held: it listens at the address; fd: it connects there, since another holds it (taken).  -1: not so, and why. */
struct unit_tried { int held, fd; bool taken; struct ds_err why_not_held, why; };
/* Begins a try, which ends with unit_tried_here.  over: as addr_bind.  DS_OS. */
int unit_try(struct unit *u, bool over, struct ds_err *err);
bool unit_try_take(struct unit *u, struct unit_tried *r); /* false: there is none that has ended */
void unit_try_drop(struct unit *u);

/* ---- unit_peer.c: connections between ranks ---- */
/* For the others, where this rank's end of fd is: a connection to the address, or who listens there. */
int unit_listen(struct unit *u, int fd, struct ds_err *err);
void unit_accept_failed(struct unit *u, int fd); /* errno says why */
void unit_accept_again(struct unit *u);
void unit_unlisten(struct unit *u);
void unit_take_table(struct unit *u, const struct meet_table *t);
void unit_more_members(struct unit *u, const struct meet_table *t); /* a newcomer learns of them */
void unit_stop_connecting(struct unit *u);

/* ---- unit_plan.c ---- */
const struct unit_plan *unit_plan_find(const struct unit *u, uint64_t id); /* that is ready */
uint64_t unit_plan_ready(const struct unit *u);  /* the greatest that is */
void unit_plan_in(struct unit *u, size_t from, const void *data, size_t n);
void unit_plan_refused(struct unit *u, uint64_t id);
void unit_plan_feed(struct unit *u, size_t to);  /* the plan in effect, where it is this rank's to send */
/* After a vote: who has not all of a plan gets it. */
void unit_plan_heal(struct unit *u, const struct unit_ballot *ballots, const struct ranks *members);
void unit_plan_ids(const struct unit *u, uint64_t ids[UNIT_PLANS_TOLD]); /* that are ready, the greatest first */
void unit_plan_prune(struct unit *u);
void unit_plan_free(struct unit *u);

#endif
