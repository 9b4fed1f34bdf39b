"""Visual question answering under edited images: data, answers, the SAAA network, processors of current models."""
