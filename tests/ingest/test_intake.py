"""What is made again when a batch names somebody who has no id yet."""

from tests.factories import make_event
from tests.support.ledger import Ledger


async def test_only_the_events_of_new_users_are_made_again_and_each_keeps_its_own(ledger: Ledger) -> None:
    """Six events, of which the third and the sixth name a user first; cut in two, each half makes its own again."""
    await ledger.add_price(input="2.00", output="8.00")
    async with ledger.intake() as intake:
        # A first batch makes the rate sets known.
        await intake.post(await intake.read([ledger.message(make_event("ev-before"))]))
        messages = [
            ledger.message(make_event(f"ev-{number}", **({"user_hash": f"u-{number}"} if number in (2, 5) else {})))
            for number in range(6)
        ]
        whole = await intake.read(messages)
        assert whole.missing.places == [2, 5]
        halves = [whole.part(0, 3), whole.part(3, 6)]
        assert [half.missing.places for half in halves] == [[2], [2]]
        for half in halves:
            await intake.post(half)
        # Their ids are there now.
        again = halves[0].with_ids()
        assert [now is before for now, before in zip(again.prepared, halves[0].prepared, strict=True)] == [
            True,
            True,
            False,
        ]
        assert not again.missing
    assert ledger.rows(
        "select request_id, user_hash from ledger.entries left join ledger.subjects using (subject_id)"
        " where user_hash is not null order by 1"
    ) == [("req-ev-2", "u-2"), ("req-ev-5", "u-5")]
