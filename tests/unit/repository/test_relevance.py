"""Whether a question has to do with a repository: many questions, asked in two different ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cdo.repository.context import gather
from cdo.repository.ranking import Ranking
from cdo.repository.relevance import concerns
from cdo.repository.survey import survey
from tests.unit.repository.test_context import write
from tests.unit.repository.test_survey import ROOT, repo, shown

# Questions about anything else; some of their words stand in code ("time", "plan", "budget", "house", "family").
ELSEWHERE = (
    "What is the capital of France?",
    "What is 2+2?",
    "What time is it in Tokyo?",
    "How do I cook rice?",
    "Who wrote Hamlet?",
    "How far is the moon from the earth?",
    "Write a poem about autumn",
    "What is the best laptop for a student?",
    "Should I buy a house or rent?",
    "How do vaccines work?",
    "Explain the theory of relativity",
    "Is coffee healthy?",
    "What are the symptoms of flu?",
    "Translate good morning into Spanish",
    "Who won the world cup in 2014?",
    "What is the meaning of life?",
    "Where should my family go on holiday next summer?",
    "How tall is Mount Everest?",
    "What causes inflation?",
    "Plan a holiday in Italy with two children and a budget of 3000 euros",
    "Should a company offer its staff a four-day week?",
    "Who designed the architecture of the Eiffel Tower?",
    "How do I deploy a Django app?",
    "Should I adopt a dog?",
    "What is the best database?",
    "What is a good name for a cat?",
    "How does a mortgage work?",
    "What is the budget of NASA?",
    "Who is the president of Brazil?",
    "Should voting be compulsory?",
)
# Questions about a repository as a whole, or about what its makers should do with it: relevant in any.
ANYWHERE = (
    "Evaluate architecture",
    "Where is the technical debt?",
    "Is our error handling consistent?",
    "Review this code",
    "What are the biggest risks in this project?",
    "Should we rewrite it in Rust?",
    "Should we adopt Kafka?",
    "How can we make the tests faster?",
    "Which parts of the codebase should be refactored?",
    "What should we do next?",
    "Is the architecture ready for Kubernetes?",
    "Should we drop support for Python 3.11?",
    "Warum sind die Tests und die Dienste so langsam?",
)
OWN = (  # about this repository
    "Should retries obey Retry-After?",
    "How does resume work?",
    "Should we reduce node types?",
    "Should the journal be a database?",
    "Where do sessions get written?",
    "How are citations verified?",
    "Why is the budget reserved before a call?",
    "Is the sandbox safe enough on macOS?",
    "Should synthesis weigh vendors?",
    "Does the parliament count votes correctly?",
    "Should the lock be flock?",
    "Is cdo/runner/retry.py correct?",
    "How does page_rank work?",
    "cdo must run batches of thousands of deliberations. Should it depend on Dask?",
)
SHOP = (  # about the small repository below
    "How does the queue push a job?",
    "Should the job queue move from PostgreSQL to Kafka before the second country goes live in April?",
    "Why are invoices rounded wrongly?",
    "Is the tax of an order right?",
    "Should prices be decimals?",
    "What does src/tax.py do?",
    "Why does `charge_card` fail?",
    "Can a refund be paid twice?",
)
FILES = {
    "README.md": "# Shop\n\nSells things.\n\n## Refunds\n\nA refund is paid once.\n",
    "src/queue.py": "def push(job):\n    HEAP.append(job)\n",
    "src/tax.py": "from decimal import Decimal\n\n\ndef tax_of(order):\n    return round(order.price * RATE)\n",
    "src/invoice.py": '"""Invoices."""\n\n\ndef total(order):\n    pass\n\n\ndef charge_card(card):\n    ...\n',
    # Tests hold examples about anything.
    "tests/test_ask.py": "Q = 'What is the capital of France? Who wrote Hamlet?'\n",
}


def ranking(files: dict[str, bytes], question: str) -> Ranking:
    found = Ranking(question)
    for path, data in files.items():
        found.add(path, data)
    return found


@pytest.mark.parametrize(
    ("question", "relevant"),
    [*((text, False) for text in ELSEWHERE), *((text, True) for text in (*ANYWHERE, *SHOP))],
)
def test_questions_in_a_small_repository(question: str, relevant: bool) -> None:
    files = {path: text.encode() for path, text in FILES.items()}
    assert concerns(question, ranking(files, question)) is relevant


@pytest.mark.wide
def test_questions_in_this_repository() -> None:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-coz", "--exclude-standard"], capture_output=True, check=True
    ).stdout.decode()
    files = {name: (ROOT / name).read_bytes() for name in listed.split("\0") if (ROOT / name).is_file()}
    judged = {text: concerns(text, ranking(files, text)) for text in (*ELSEWHERE, *ANYWHERE, *OWN)}
    assert [text for text in ELSEWHERE if judged[text]] == []
    assert [text for text in (*ANYWHERE, *OWN) if not judged[text]] == []


def test_a_question_about_something_else_gets_no_file_and_the_text_says_so(tmp_path: Path) -> None:
    top = repo(tmp_path / "r", FILES)
    assert survey(top, "What is the capital of France?", 6000) == (
        "# Context\n\nNo context was gathered: no file of the repository `r` is relevant to the question. "
        "Add files with `-c PATH`.\n"
    )


def test_what_a_person_gave_is_shown_for_any_question(tmp_path: Path) -> None:
    top = repo(tmp_path / "r", FILES)
    write(top, {"atlas.txt": "Paris\n"})
    text = survey(top, "What is the capital of France?", 6000, gather([Path("atlas.txt")], top, 6000))
    assert shown(text) == ["atlas.txt"] and "no file of the repository `r` is relevant" in text
    assert "Given with `--context`." in text and "src/tax.py" not in text
